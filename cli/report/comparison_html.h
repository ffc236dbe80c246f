// The page of `quern compare --report`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calibrate/compare.h"

namespace quern::cli {

struct ComparedModel {
  std::string path;
  int64_t bytes = 0;
  double bits = 0;     // per weight
  std::string recipe;  // JSON, where the model knows it
  calibrate::Comparison comparison;
};

struct ComparisonReport {
  std::string original;
  int64_t original_bytes = 0;
  std::string data;
  std::vector<ComparedModel> candidates;
  std::string sensitivity_html;  // quantization_html.h
};

std::string to_html(const ComparisonReport& report);

}  // namespace quern::cli
