// Makes nodes for a file of one operator-set version.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/schema.h"
#include "passes/canonicalize/match.h"

namespace quern::passes {

// Small constants are made once each. Not thread-safe.
class Emitter {
 public:
  Emitter(BatchRewriter& batch, int opset) : batch_(batch), opset_(opset) {}

  BatchRewriter& batch() { return batch_; }
  int opset() const { return opset_; }

  // A node of ai.onnx, or of com.microsoft, with one output.
  Value* add(std::string op, std::vector<Value*> inputs, Attributes attributes = {}) {
    return node(std::move(op), std::move(inputs), std::move(attributes))->output();
  }
  Value* add_microsoft(std::string op, std::vector<Value*> inputs, Attributes attributes = {}) {
    return node(std::move(op), std::move(inputs), std::move(attributes), 1, std::string(kMicrosoftDomain))
        ->output();
  }
  Node* node(std::string op, std::vector<Value*> inputs, Attributes attributes = {}, size_t outputs = 1,
             std::string domain = {});
  Value* cast(Value* value, DType dtype);

  Value* ints(const std::vector<int64_t>& values);  // [values.size()]
  Value* integer(int64_t value);                    // []
  // []. Infinities and what is beyond the dtype's range become its largest numbers.
  Value* scalar(float value, DType dtype = DType::F32);
  Value* constant(Constant data, std::string name) {
    return batch_.add_constant(std::move(data), std::move(name));
  }

  Value* reshape(Value* x, const std::vector<int64_t>& shape) { return add("Reshape", {x, ints(shape)}); }
  Value* transpose(Value* x, const std::vector<int64_t>& order) {
    return add("Transpose", {x}, {{"perm", order}});
  }
  Value* unsqueeze(Value* x, int64_t axis) { return add("Unsqueeze", {x, ints({axis})}); }
  Value* slice(Value* x, int64_t axis, int64_t from, int64_t to, int64_t step = 1) {
    return add("Slice", {x, ints({from}), ints({to}), ints({axis}), ints({step})});
  }
  // A reduction over the last axis, which is kept: ReduceMean, ReduceMax.
  Value* reduce(std::string op, Value* x);

 private:
  BatchRewriter& batch_;
  int opset_;
  std::map<std::pair<bool, std::vector<int64_t>>, Value*> ints_;
  std::map<std::pair<float, DType>, Value*> scalars_;
};

}  // namespace quern::passes
