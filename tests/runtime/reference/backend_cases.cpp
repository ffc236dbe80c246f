#include "tests/runtime/reference/backend_cases.h"

#include <onnx/onnx-data_pb.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "formats/onnx/import.h"
#include "formats/onnx/tensor_data.h"
#include "tests/runtime/reference/archive.h"
#include "tests/runtime/reference/expected_gaps.h"
#include "tests/runtime/reference/inference_check.h"
#include "tests/support/temp_dir.h"

namespace quern::test {
namespace {

using runtime::NamedValues;
using runtime::RuntimeValue;

// "test_data_set_0/input_12.pb" -> data set 0, input 12.
void add_file(BackendCase& test, const std::string& relative, std::string content) {
  if (relative == "model.onnx") {
    test.model = std::move(content);
    return;
  }
  size_t set = 0;
  size_t index = 0;
  char kind[16] = {};
  if (std::sscanf(relative.c_str(), "test_data_set_%zu/%15[a-z]_%zu.pb", &set, kind, &index) != 3) return;
  if (test.data_sets.size() <= set) test.data_sets.resize(set + 1);
  auto& list = std::string(kind) == "input" ? test.data_sets[set].inputs : test.data_sets[set].outputs;
  if (list.size() <= index) list.resize(index + 1);
  list[index] = std::move(content);
}

Tensor read_tensor(const onnx::TensorProto& proto) {
  onnx_format::ExternalFiles external(std::nullopt);
  const auto bytes = std::make_shared<onnx::TensorProto>(proto);
  return onnx_format::TensorReader(bytes, {}, external).read(*bytes);
}

runtime::TensorSequence read_sequence(const onnx::SequenceProto& proto) {
  runtime::TensorSequence sequence;
  for (const auto& tensor : proto.tensor_values()) sequence.tensors.push_back(read_tensor(tensor));
  if (!sequence.tensors.empty()) sequence.dtype = sequence.tensors.front().dtype();
  return sequence;
}

template <class Message>
Message parse(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) throw_error(ErrorCode::Corrupt, "not a message of the expected type");
  return message;
}

// Files of ONNX 1.12 store bfloat16 as the integers of its bits.
Tensor read_tensor(const onnx::TensorProto& proto, const onnx::TypeProto& type) {
  const Tensor tensor = read_tensor(proto);
  const bool is_bits =
      tensor.dtype() == DType::U16 && type.tensor_type().elem_type() == onnx::TensorProto_DataType_BFLOAT16;
  if (!is_bits) return tensor;
  Tensor result = Tensor::zeros(DType::BF16, tensor.shape());
  std::memcpy(result.mutable_bytes(), tensor.bytes(), static_cast<size_t>(tensor.byte_size()));
  return result;
}

// Of CastLike's second input only the type counts, and some files hold one element for any shape.
Tensor in_stated_shape(const Tensor& like, const onnx::TypeProto& type) {
  Shape shape;
  for (const auto& dim : type.tensor_type().shape().dim()) shape.push_back(dim.dim_value());
  return like.shape() == shape ? like : Tensor::zeros(like.dtype(), shape);
}

RuntimeValue read_value(const std::string& bytes, const onnx::TypeProto& type) {
  if (type.has_sequence_type()) return read_sequence(parse<onnx::SequenceProto>(bytes));
  if (!type.has_optional_type()) return read_tensor(parse<onnx::TensorProto>(bytes), type);
  // Files of the suite hold an optional's content either as it is or in an OptionalProto.
  const auto optional = parse<onnx::OptionalProto>(bytes);
  if (optional.has_tensor_value()) return read_tensor(optional.tensor_value());
  if (optional.has_sequence_value()) return read_sequence(optional.sequence_value());
  return {};
}

void collect_operators(const onnx::GraphProto& graph, std::set<std::string>& operators) {
  for (const auto& node : graph.node()) {
    const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
    operators.insert(standard ? node.op_type() : node.domain() + "." + node.op_type());
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) collect_operators(attribute.g(), operators);
    }
  }
}

// What rounding to the dtype, and another order of summation, may change.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
};

Tolerance tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::F32:
    case DType::F64:
      return {1e-4, 1e-6};
    case DType::F16:
      return {5e-3, 1e-3};
    case DType::BF16:
      return {2e-2, 1e-2};
    default:
      return {};
  }
}

std::string compare_tensors(const Tensor& expected, const Tensor& actual, double recorded) {
  if (expected.dtype() != actual.dtype() || expected.shape() != actual.shape()) {
    return concat("expected ", to_string(expected.dtype()), " ", to_string(expected.shape()), ", got ",
                  to_string(actual.dtype()), " ", to_string(actual.shape()));
  }
  if (expected.dtype() == DType::String)
    return expected.strings() == actual.strings() ? "" : "strings differ";
  Tolerance tolerance = tolerance_of(expected.dtype());
  tolerance.relative = std::max(tolerance.relative, recorded);
  const bool floating = is_floating(expected.dtype()) || expected.dtype() == DType::F8E8M0;
  for (int64_t i = 0; i < expected.size(); ++i) {
    const double e = expected.at(i);
    const double a = actual.at(i);
    bool same = false;
    if (floating) {
      same = (std::isnan(e) && std::isnan(a)) || e == a ||
             std::fabs(a - e) <= tolerance.absolute + tolerance.relative * std::fabs(e);
    } else {
      same = expected.int_at(i) == actual.int_at(i);
    }
    if (!same)
      return concat("element ", i, " of ", to_string(expected.shape()), ": expected ", e, ", got ", a);
  }
  return "";
}

}  // namespace

std::vector<BackendCase> read_case_folder(const std::filesystem::path& folder) {
  std::map<std::string, BackendCase> cases;
  if (!std::filesystem::exists(folder)) return {};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string relative = std::filesystem::relative(entry.path(), folder).string();
    const std::string name = relative.substr(0, relative.find('/'));
    if (name == relative) continue;
    cases[name].name = name;
    add_file(cases[name], relative.substr(name.size() + 1), read_text(entry.path()));
  }
  std::vector<BackendCase> list;
  for (auto& [name, test] : cases) list.push_back(std::move(test));
  return list;
}

std::vector<BackendCase> read_case_archive(const std::filesystem::path& path) {
  std::map<std::string, BackendCase> cases;
  for (auto& [full, content] : read_tar_gz(path)) {
    const size_t begin = full.find("node/");
    if (begin == std::string::npos) continue;
    const std::string relative = full.substr(begin + 5);
    const std::string name = relative.substr(0, relative.find('/'));
    if (name == relative) continue;
    cases[name].name = name;
    add_file(cases[name], relative.substr(name.size() + 1), std::move(content));
  }
  std::vector<BackendCase> list;
  for (auto& [name, test] : cases) list.push_back(std::move(test));
  return list;
}

LoadedCase load(const BackendCase& test) {
  LoadedCase loaded;
  const auto bytes = std::make_shared<std::string>(test.model);
  loaded.graph =
      onnx_format::import_model(std::as_bytes(std::span(bytes->data(), bytes->size())), bytes, test.name)
          .graph;
  const auto model = parse<onnx::ModelProto>(test.model);
  std::vector<const onnx::ValueInfoProto*> inputs;
  std::set<std::string> initialized;
  for (const auto& tensor : model.graph().initializer()) initialized.insert(tensor.name());
  for (const auto& input : model.graph().input()) {
    if (!initialized.contains(input.name())) inputs.push_back(&input);
  }
  for (const auto& set : test.data_sets) {
    LoadedCase::DataSet data;
    for (size_t i = 0; i < std::min(set.inputs.size(), inputs.size()); ++i) {
      RuntimeValue& value = data.inputs[inputs[i]->name()];
      value = read_value(set.inputs[i], inputs[i]->type());
      if (inputs[i]->name() == "like") value = in_stated_shape(value.dense(), inputs[i]->type());
    }
    for (int i = 0; i < std::min<int>(static_cast<int>(set.outputs.size()), model.graph().output_size());
         ++i) {
      const auto& output = model.graph().output(i);
      data.expected[output.name()] = read_value(set.outputs[static_cast<size_t>(i)], output.type());
    }
    loaded.data_sets.push_back(std::move(data));
  }
  return loaded;
}

std::vector<std::string> operators_of(const BackendCase& test) {
  std::set<std::string> operators;
  collect_operators(parse<onnx::ModelProto>(test.model).graph(), operators);
  return {operators.begin(), operators.end()};
}

bool has_optional_sequence(const BackendCase& test) {
  const auto model = parse<onnx::ModelProto>(test.model);
  const auto is_one = [](const onnx::ValueInfoProto& value) {
    return value.type().optional_type().elem_type().has_sequence_type();
  };
  const auto& inputs = model.graph().input();
  const auto& outputs = model.graph().output();
  return std::any_of(inputs.begin(), inputs.end(), is_one) ||
         std::any_of(outputs.begin(), outputs.end(), is_one);
}

std::string compare(const RuntimeValue& expected, const RuntimeValue& actual, double recorded) {
  if (!expected.present() || !actual.present()) {
    return expected.present() == actual.present()
               ? ""
               : concat("expected ", to_string(expected), ", got ", to_string(actual));
  }
  if (expected.is_sequence() != actual.is_sequence()) {
    return concat("expected ", to_string(expected), ", got ", to_string(actual));
  }
  if (!expected.is_sequence()) return compare_tensors(expected.dense(), actual.dense(), recorded);
  const auto& want = expected.sequence().tensors;
  const auto& have = actual.sequence().tensors;
  if (want.size() != have.size()) return concat("expected ", want.size(), " tensors, got ", have.size());
  for (size_t i = 0; i < want.size(); ++i) {
    const std::string difference = compare_tensors(want[i], have[i], recorded);
    if (!difference.empty()) return concat("tensor ", i, ": ", difference);
  }
  return "";
}

namespace {

// On the kernels of one implementation, or on those that the table prefers.
std::string differences(const runtime::Interpreter& interpreter, const LoadedCase::DataSet& data,
                        const std::string& implementation, double recorded, NamedValues& outputs) {
  runtime::RunOptions options;
  options.implementation = implementation;
  options.limits.max_tensor_bytes = int64_t{1} << 30;
  outputs = interpreter.run(data.inputs, options);
  for (const auto& [name, expected] : data.expected) {
    const std::string difference = compare(expected, outputs.at(name), recorded);
    if (!difference.empty()) {
      return concat("output '", name, "' (", implementation.empty() ? "preferred" : implementation,
                    " kernels): ", difference);
    }
  }
  return "";
}

}  // namespace

CaseResult run_case(const BackendCase& test) {
  using Status = CaseResult::Status;
  try {
    const LoadedCase loaded = load(test);
    const runtime::Interpreter interpreter(*loaded.graph);
    for (const auto& data : loaded.data_sets) {
      NamedValues outputs;
      for (const char* implementation : {"reference", ""}) {
        const std::string difference =
            differences(interpreter, data, implementation, recorded_precision(test.name), outputs);
        if (!difference.empty()) return {Status::Failed, difference};
      }
      const std::string inference = check_inference(*loaded.graph, data.inputs, outputs);
      if (!inference.empty()) return {Status::Failed, "inference: " + inference};
    }
    return {};
  } catch (const Error& error) {
    return {error.code() == ErrorCode::Unsupported ? Status::Unsupported : Status::Failed, error.what()};
  } catch (const std::exception& error) {
    return {Status::Failed, error.what()};
  }
}

}  // namespace quern::test
