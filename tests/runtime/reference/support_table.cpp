// Writes docs/onnx-support.md: what each operator's cases in ONNX's backend suite come to.
//
//   quern-onnx-support ARCHIVE OUTPUT
//
// ARCHIVE: the node cases of ONNX as a .tar.gz (node/<case>/...). The cases of the package libonnx-testdata
// and the recorded ones of com.microsoft are found where they always are.
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "ir/schema.h"
#include "runtime/kernel_table.h"
#include "tests/runtime/reference/backend_cases.h"
#include "tests/runtime/reference/expected_gaps.h"
#include "tests/support/paths.h"

namespace quern::test {
namespace {

struct Row {
  int passed = 0;
  int failed = 0;
  int unsupported = 0;
};

struct Tally {
  std::map<std::string, Row> rows;  // by operator; cases of several operators: kMixed
  std::map<std::string, std::set<std::string>> reasons;
  Row total;
  int cases = 0;
};

constexpr const char* kMixed = "(graphs of several operators)";

void count(const std::vector<BackendCase>& cases, Tally& tally) {
  for (const BackendCase& test : cases) {
    const std::vector<std::string> operators = operators_of(test);
    const CaseResult result = run_case(test);
    const std::string reason = reason_for_gap(test, operators);
    const bool passed = result.status == CaseResult::Status::Passed;
    const auto add = [&](Row& row) {
      ++(passed ? row.passed : reason.empty() ? row.failed : row.unsupported);
    };
    add(tally.rows[operators.size() == 1 ? operators.front() : kMixed]);
    add(tally.total);
    ++tally.cases;
    if (!reason.empty()) tally.reasons[reason].insert(test.name);
    if (!passed && reason.empty()) std::cerr << test.name << ": " << result.message << "\n";
  }
}

Tally tally_of(const std::vector<BackendCase>& cases) {
  Tally tally;
  count(cases, tally);
  return tally;
}

std::string summary(const Tally& tally) {
  const int percent = tally.cases == 0 ? 0 : 1000 * tally.total.passed / tally.cases;
  return concat(tally.total.passed, " of ", tally.cases, " pass (", percent / 10, ".", percent % 10, "%), ",
                tally.total.failed, " fail, ", tally.total.unsupported, " are unsupported");
}

// "Abs 6 13": the operator, and its versions in the operator sets that quern reads.
std::map<std::string, std::string> read_versions() {
  std::ifstream file(source_path("tests/runtime/reference/fixtures/operator_versions.txt"));
  std::map<std::string, std::string> versions;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name, number;
    words >> name;
    std::string& list = versions[name];
    while (words >> number) list += (list.empty() ? "" : ", ") + number;
  }
  return versions;
}

void write_counts(std::ostream& out, const Tally& tally, const std::string& key) {
  const auto found = tally.rows.find(key);
  const Row row = found == tally.rows.end() ? Row{} : found->second;
  out << " " << row.passed << " | " << row.failed << " | " << row.unsupported << " |";
}

void write_onnx_operators(std::ostream& out, const Tally& newer, const Tally& older) {
  out << "| operator | versions | passed | failed | unsupported | 1.12: passed | failed | unsupported |\n"
         "|---|---|---|---|---|---|---|---|\n";
  std::map<std::string, std::string> rows = read_versions();
  for (const Tally* tally : {&newer, &older}) {
    for (const auto& [name, row] : tally->rows) {
      if (!name.starts_with(kMicrosoftDomain)) rows.try_emplace(name, "");
    }
  }
  const runtime::KernelTable& table = runtime::KernelTable::instance();
  for (const auto& [name, versions] : rows) {
    const bool is_known = name == kMixed || table.lowest_version("", name) > 0;
    out << "| " << name << " | "
        << (!is_known                            ? "none"
            : versions.empty() && name != kMixed ? "after 25"
                                                 : versions)
        << " |";
    write_counts(out, newer, name);
    write_counts(out, older, name);
    out << "\n";
  }
}

void write_microsoft_operators(std::ostream& out, const Tally& tally) {
  out << "| operator | versions | passed | failed | unsupported |\n|---|---|---|---|---|\n";
  for (const auto& [domain, op] : runtime::KernelTable::instance().operators()) {
    if (domain != kMicrosoftDomain) continue;
    out << "| " << op << " | 1 |";
    write_counts(out, tally, domain + "." + op);
    out << "\n";
  }
}

void write_reasons(std::ostream& out, const std::vector<const Tally*>& tallies) {
  std::map<std::string, std::set<std::string>> reasons;
  for (const Tally* tally : tallies) {
    for (const auto& [reason, names] : tally->reasons) reasons[reason].insert(names.begin(), names.end());
  }
  for (const auto& [reason, names] : reasons) {
    out << "- " << reason << ":";
    const char* separator = " ";
    for (const std::string& name : names) out << std::exchange(separator, ", ") << "`" << name << "`";
    out << ".\n";
  }
}

constexpr const char* kIntroduction =
    "# ONNX operators\n\n"
    "Made by `cmake --build build --target onnx-support`; not edited by hand.\n\n"
    "Every operator with versions has a reference kernel and a shape function. *Versions* are the operator's "
    "own in\n"
    "the operator sets 7 to 25 of ai.onnx, the first being the one that set 7 has; all of them are read. "
    "A case of\n"
    "ONNX's backend suite has *passed* when the outputs agree and when shape inference agrees with them: "
    "with "
    "the\n"
    "types that the file states, with every dimension of every input a symbol, and with every input a "
    "constant.\n"
    "It is *unsupported* for a reason that stands at the end of this page; every other case must pass, and "
    "is "
    "a test.\n"
    "Where an operator has no case of its own, graphs of several operators and whole models use it.\n\n";

constexpr const char* kLimits =
    "\nOperators of other domains, and those without versions above, are refused at once, all of a graph "
    "together, with\n"
    "domain, version and what to do about it; `quern` then ends with status 4.\n\n"
    "The operators above without versions draw random numbers (Bernoulli, Multinomial, RandomNormal,\n"
    "RandomNormalLike, RandomUniform, RandomUniformLike: the same input must give the same output), or do "
    "work that\n"
    "belongs in front of the model (ImageDecoder, RegexFullMatch).\n";

int write_table(const std::filesystem::path& archive, const std::filesystem::path& target) {
  const std::string debian = kDebianTestData;
  const Tally newer = tally_of(read_case_archive(archive));
  const Tally older = tally_of(read_case_folder(debian + "/node"));
  const Tally microsoft =
      tally_of(read_case_archive(source_path("tests/runtime/reference/fixtures/microsoft_cases.tar.gz")));
  Tally whole;
  for (const char* folder : {"/simple", "/pytorch-converted", "/pytorch-operator"}) {
    count(read_case_folder(debian + folder), whole);
  }
  const std::string figures =
      concat("- Node cases of ONNX 1.22: ", summary(newer),
             ".\n- Node cases of ONNX 1.12 (libonnx-testdata): ", summary(older),
             ".\n- Whole models of libonnx-testdata that ship with data: ", summary(whole),
             ".\n- Cases of com.microsoft, recorded with ONNX Runtime: ", summary(microsoft), ".\n");
  std::ofstream out(target);
  out << kIntroduction << figures << "\n## ai.onnx\n\n";
  write_onnx_operators(out, newer, older);
  out << kLimits << "\n## com.microsoft\n\n";
  write_microsoft_operators(out, microsoft);
  out << "\n## Unsupported cases, and why\n\n";
  write_reasons(out, {&newer, &older, &microsoft, &whole});
  std::cout << figures;
  const auto failed = [](const Tally& tally) { return tally.total.failed; };
  return failed(newer) + failed(older) + failed(microsoft) + failed(whole) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace quern::test

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: quern-onnx-support ARCHIVE OUTPUT\n";
    return 2;
  }
  return quern::test::write_table(argv[1], argv[2]);
}
