// What the parts of one import share.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "formats/onnx/proto.h"
#include "formats/onnx/tensor_data.h"

namespace quern::onnx_format {

using Opsets = std::map<std::string, int>;  // by normal_domain

// Throws Error{InvalidModel} for a version that makes no sense.
Opsets read_opsets(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports);

// Gathers what is not supported, to say all of it at once.
class Problems {
 public:
  void add(std::string problem) { problems_.push_back(std::move(problem)); }
  bool any() const { return !problems_.empty(); }
  // Runs `body`; an Error{Unsupported} that leaves it is kept, and the result is then false.
  template <class Body>
  bool collect(Body&& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::Unsupported) throw;
      add(error.what());
      return false;
    }
  }
  void throw_if_any() const;

 private:
  std::vector<std::string> problems_;
};

// A function of the model, ready to be inlined.
struct Function {
  const onnx::FunctionProto* proto;
  Opsets opsets;
  std::vector<onnx::AttributeProto> defaults;
};

class FunctionLibrary {
 public:
  explicit FunctionLibrary(const onnx::ModelProto& model);
  // Null where `node` calls no function of the model.
  const Function* find(const onnx::NodeProto& node) const;

 private:
  std::map<std::tuple<std::string, std::string, std::string>, Function> functions_;  // domain, name, overload
};

struct ImportState {
  const TensorReader& tensors;
  const FunctionLibrary& functions;
  Opsets opsets;  // of the model
  std::map<std::string, Dim> fresh_dims = {};
  Problems problems = {};
  std::vector<std::string> warnings = {};
  int64_t inlined_nodes = 0;
};

}  // namespace quern::onnx_format
