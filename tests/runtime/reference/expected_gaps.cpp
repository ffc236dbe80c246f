#include "tests/runtime/reference/expected_gaps.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

namespace quern::test {
namespace {

const std::map<std::string, std::string>& gaps_by_operator() {
  static const std::string machine_learning =
      "domain ai.onnx.ml: classical machine learning as converters of scikit-learn write it";
  static const std::map<std::string, std::string> gaps{
      {"Bernoulli", "draws random numbers by a generator that ONNX does not define"},
      {"RandomUniformLike", "draws random numbers by a generator that ONNX does not define"},
      {"ImageDecoder", "decodes JPEG, PNG, ...: work for an image library in front of the model"},
      {"RegexFullMatch",
       "matches strings by regular expressions: work for the program in front of the model"},
      {"ai.onnx.preview.training.Adagrad", "training"},
      {"ai.onnx.preview.training.Adam", "training"},
      {"ai.onnx.preview.training.Gradient", "training"},
      {"ai.onnx.preview.training.Momentum", "training"},
      {"ai.onnx.ml.ArrayFeatureExtractor", machine_learning},
      {"ai.onnx.ml.Binarizer", machine_learning},
      {"ai.onnx.ml.LabelEncoder", machine_learning},
      {"ai.onnx.ml.TreeEnsemble", machine_learning},
  };
  return gaps;
}

struct CaseGap {
  std::string_view name;  // or, with a star at the end, how it begins
  std::string_view reason;
};

bool matches(std::string_view pattern, std::string_view name) {
  return pattern.ends_with('*') ? name.starts_with(pattern.substr(0, pattern.size() - 1)) : name == pattern;
}

constexpr std::string_view kSoftcapOrder =
    "recorded with the mask before the soft cap, and the stages of qk_matmul_output_mode numbered so; ONNX "
    "1.23 corrected both, and quern follows it, as ONNX Runtime does";
constexpr std::string_view kOptionalSequence =
    "optionals of sequences, which no exporter writes; optionals of tensors are supported";
constexpr std::string_view kWrapped =
    "recorded outputs wrap around at 8 bits where the operator's definition saturates";
constexpr std::string_view kDrops = "drops at random, by numpy's generator, which ONNX does not define";

constexpr std::array kGapsByCase{
    CaseGap{"test_attention_3d_with_past_and_present_qk_matmul_bias", kSoftcapOrder},
    CaseGap{"test_attention_3d_with_past_and_present_qk_matmul_softcap", kSoftcapOrder},
    CaseGap{"test_attention_4d_with_past_and_present_qk_matmul_bias", kSoftcapOrder},
    CaseGap{"test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask", kSoftcapOrder},
    CaseGap{"test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal", kSoftcapOrder},
    CaseGap{"test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask", kSoftcapOrder},
    CaseGap{"test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal", kSoftcapOrder},
    CaseGap{"test_attention_4d_with_qk_matmul_bias", kSoftcapOrder},
    CaseGap{"test_attention_4d_with_qk_matmul_softcap", kSoftcapOrder},
    CaseGap{"test_qlinearmatmul_2D_int8_*", kWrapped},
    CaseGap{"test_qlinearmatmul_3D_int8_*", kWrapped},
    CaseGap{"test_training_dropout", kDrops},
    CaseGap{"test_training_dropout_default*", kDrops},
    CaseGap{"test_training_dropout_mask", kDrops},
};

constexpr std::array kPiOfFiveDigits{std::string_view("test_blackmanwindow"),
                                     std::string_view("test_hammingwindow"),
                                     std::string_view("test_hannwindow")};
constexpr std::array kFourDecimals{std::string_view("test_gridsample_bicubic"),
                                   std::string_view("test_roialign_aligned_"),
                                   std::string_view("test_averagepool_2d_ceil_last_window_starts_on_pad")};

}  // namespace

std::string reason_for_gap(const BackendCase& test, const std::vector<std::string>& operators) {
  for (const CaseGap& gap : kGapsByCase) {
    if (matches(gap.name, test.name)) return std::string(gap.reason);
  }
  if (has_optional_sequence(test)) return std::string(kOptionalSequence);
  for (const std::string& name : operators) {
    const auto by_operator = gaps_by_operator().find(name);
    if (by_operator != gaps_by_operator().end()) return by_operator->second;
  }
  return "";
}

double recorded_precision(const std::string& case_name) {
  const auto starts = [&](std::string_view prefix) { return case_name.starts_with(prefix); };
  const bool is_rough = std::any_of(kPiOfFiveDigits.begin(), kPiOfFiveDigits.end(), starts) ||
                        std::any_of(kFourDecimals.begin(), kFourDecimals.end(), starts);
  return is_rough ? 1e-3 : 0;  // that of ONNX's own runner
}

}  // namespace quern::test
