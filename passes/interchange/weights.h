// Products and lookups of quantized weights, in the operators of other runtimes.
#pragma once

#include <map>

#include "passes/interchange/emitter.h"
#include "passes/interchange/interchange.h"
#include "passes/interchange/weight_codes.h"

namespace quern::passes {

// The version of ai.onnx that a weight needs in this style, 0 for any.
int needed_opset(const Value& weight, const InterchangeOptions& options);

class WeightLowering {
 public:
  WeightLowering(Emitter& emit, const InterchangeOptions& options) : emit_(emit), options_(options) {}

  // What computes ai.quern Linear, Embedding, Convolution and ConvolutionTranspose. Throw Error{Unsupported}
  // naming the weight.
  Value* linear(const Node& node);
  Value* convolution(const Node& node);
  Value* embedding(const Node& node);

 private:
  struct Weight {
    std::string name;
    Tensor dense;  // [N, K] of floats; undefined if quantized
    QuantizedTensor codes;
    bool is_quantized = false;
    bool shared = false;  // a table as well as a product's weight
  };
  struct Blocks {  // MatMulNBits' form of a weight
    int bits = 0;
    int64_t size = 0;
    Value* codes = nullptr;   // U8 [N, blocks, bytes]
    Value* scales = nullptr;  // [N, blocks]
    Value* points = nullptr;  // U8 [N, bytes], or null
  };
  struct Codes {  // those of a QuantizedTensor as constants
    Value* codes = nullptr;
    Value* scales = nullptr;
    Value* points = nullptr;  // null where they are DequantizeLinear's default of 0
  };
  const Weight& weight_of(const Value* value);
  [[noreturn]] void refuse(const Weight& weight, const std::string& why) const;
  Value* with_bias(Value* product, Value* bias);
  Value* dense_matrix(const Weight& weight);  // f32 [K, N]
  Value* dequantized(const Weight& weight);
  Value* dequantized_table(const Weight& weight);  // f32 [K, N]
  Blocks blocks_of(const Weight& weight, bool table);
  Codes codes_of(const Weight& weight);
  Value* column_sums(const Weight& weight, const Tensor& codes, const Tensor& points);
  Value* rounded_input(const Node& node);
  Value* block_product(const Node& node, const Weight& weight);
  Value* integer_product(const Node& node, const Weight& weight);
  Value* block_lookup(const Weight& weight, Value* ids);
  Value* code_lookup(const Weight& weight, Value* ids);

  struct Dynamic {           // an activation in 8 bits
    Value* codes = nullptr;  // U8
    Value* scale = nullptr;  // of all, or [..., 1]
    Value* point = nullptr;  // U8 []; null for 0
    Value* shift = nullptr;  // f32 [..., 1]: zero points that differ, or null
  };
  Dynamic coded_input(const Node& node);
  Value* coded_product(const Node& node, const Dynamic& x, const Codes& columns);

  // The codes that a product's result is read in, and what lies between.
  struct CodedOutput {
    std::vector<const Node*> steps;  // in order; Relu and Clip are what the ends of the codes do
    const Value* last = nullptr;
    const Node* reader = nullptr;  // one of the products that read `last`; null: floats are asked for
  };
  CodedOutput coded_output(const Node& node);
  bool reads_codes(const Node& node);
  // Hands the codes of the result on to the readers; what stands for the node's output.
  Value* hand_on(const CodedOutput& output, const Dynamic& codes);
  Value* integer_bias(const Node& node, const Weight& weight);

  struct KernelForm;
  Value* dense_kernel(const Node& node, const Weight& weight, const KernelForm& form);
  Value* dequantized_kernel(const Node& node, const Weight& weight, const KernelForm& form);
  Value* integer_convolution(const Node& node, const Weight& weight, const KernelForm& form);
  Dynamic coded_image(const Node& node);
  Dynamic dynamic(Value* x, const std::string& kind);
  Dynamic by_magnitude(Value* x, Value* largest);
  Dynamic by_token(Value* x);
  Dynamic by_token_asymmetric(Value* x);
  Dynamic static_codes(const Node& node, bool as_unsigned);
  Dynamic static_constants(const Node& node, bool as_unsigned);  // without the codes

  Emitter& emit_;
  InterchangeOptions options_;
  std::map<const Value*, Weight> weights_;
  std::map<const Weight*, Blocks> blocks_;
  std::map<const Weight*, Codes> codes_;          // as they are
  std::map<const Weight*, Codes> integer_codes_;  // of MatMulInteger
  std::map<const Weight*, Value*> matrices_;
  std::map<const Weight*, Value*> tables_;
  std::map<std::pair<Value*, std::string>, Dynamic> dynamics_;
  std::map<const Weight*, Value*> column_sums_;
  std::map<std::pair<Value*, float>, Value*> rounded_;
  std::map<const Value*, Dynamic> ready_codes_;                      // of results, by what is read
  std::map<std::pair<const Weight*, std::string>, Value*> kernels_;  // by form
};

}  // namespace quern::passes
