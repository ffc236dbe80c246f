#include "formats/onnx/import_state.h"

#include "ir/error.h"
#include "ir/schema.h"

namespace quern::onnx_format {

Opsets read_opsets(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports) {
  Opsets opsets;
  for (const auto& import : imports) {
    const std::string domain = normal_domain(import.domain());
    constexpr int64_t kHighest = 10'000;
    if (import.version() < 1 || import.version() > kHighest) {
      throw_error(ErrorCode::InvalidModel, "operator set ", quoted(domain.empty() ? "ai.onnx" : domain),
                  " is imported with version ", import.version(), ", which cannot be");
    }
    opsets[domain] = static_cast<int>(import.version());
  }
  return opsets;
}

void Problems::throw_if_any() const {
  if (problems_.empty()) return;
  constexpr size_t kMost = 50;
  std::string text =
      problems_.size() == 1 ? "" : std::to_string(problems_.size()) + " things are not supported: ";
  for (size_t i = 0; i < std::min(problems_.size(), kMost); ++i) text += (i ? "; " : "") + problems_[i];
  if (problems_.size() > kMost) text += "; and " + std::to_string(problems_.size() - kMost) + " more";
  throw_error(ErrorCode::Unsupported, text);
}

FunctionLibrary::FunctionLibrary(const onnx::ModelProto& model) {
  for (const auto& proto : model.functions()) {
    const std::string domain = normal_domain(proto.domain());
    Function function{&proto, read_opsets(proto.opset_import()), {}};
    for (const std::string& bytes : newer_field(proto, kFunctionDefaults)) {
      onnx::AttributeProto attribute;
      if (!attribute.ParseFromString(bytes)) {
        throw_error(ErrorCode::Corrupt, "the attributes of function ", quoted(proto.name()),
                    " are malformed");
      }
      function.defaults.push_back(std::move(attribute));
    }
    const auto key = std::tuple(domain, proto.name(), newer_string(proto, kFunctionOverload));
    if (!functions_.emplace(key, std::move(function)).second) {
      throw_error(ErrorCode::InvalidModel, "function ", quoted(proto.name()), " is defined twice");
    }
  }
}

const Function* FunctionLibrary::find(const onnx::NodeProto& node) const {
  if (functions_.empty()) return nullptr;
  const std::string domain = normal_domain(node.domain());
  const auto found = functions_.find(std::tuple(domain, node.op_type(), newer_string(node, kNodeOverload)));
  if (found == functions_.end()) return nullptr;
  // A fused operator that quern has itself is better than its expansion.
  const bool known = !domain.empty() && SchemaTable::instance().find(domain, node.op_type(), 1) != nullptr;
  return known ? nullptr : &found->second;
}

}  // namespace quern::onnx_format
