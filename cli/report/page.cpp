#include "cli/report/page.h"

#include "cli/report/svg.h"

namespace quern::cli::report {
namespace {

constexpr const char* kStyle =
#include "cli/report/page.css.inc"
    ;

}  // namespace

std::string page(const std::string& title, const std::string& body) {
  return "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
         escape(title) + "</title>\n<style>" + kStyle + "</style>\n</head>\n<body>\n<main>\n" + body +
         "</main>\n</body>\n</html>\n";
}

std::string figure(const std::string& title, const std::string& reading, const std::string& plot) {
  if (plot.empty()) return "";
  return "<figure><figcaption>" + title + "<span>" + reading + "</span></figcaption>\n" + plot +
         "</figure>\n";
}

}  // namespace quern::cli::report
