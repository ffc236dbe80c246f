#include "runtime/decoder/linear_steps.h"

#include <array>
#include <string>

namespace quern::runtime {

int64_t Encoding::byte_size(const std::vector<cpu::ActivationFormat>& formats, int64_t rows) {
  int64_t bytes = 0;
  for (const cpu::ActivationFormat& format : formats) {
    bytes += (cpu::Activations::byte_size(format, rows) + 63) / 64 * 64;
  }
  return bytes;
}

cpu::Activations Encoding::place(const Pass& pass, int64_t rows, size_t index) const {
  size_t offset = 0;
  for (size_t i = 0; i < index; ++i) {
    offset += static_cast<size_t>((cpu::Activations::byte_size(formats[i], rows) + 63) / 64 * 64);
  }
  return cpu::Activations::place(formats[index], rows, pass.encoded.subspan(offset));
}

EncodeStep::EncodeStep(Encoding encoding, Operand x) : encoding_(std::move(encoding)), x_(x) {
  kind = "encode";
  reads = {x};
}

void EncodeStep::run(const Pass& pass, int thread) const {
  const int64_t rows = pass.count(space);
  const cpu::Range range = cpu::part_of(rows, thread, pass.threads);
  if (range.begin == range.end) return;
  const RowView x = pass.view(x_);
  for (size_t i = 0; i < encoding_.formats.size(); ++i) {
    encoding_.place(pass, rows, i).encode(x.data, x.stride, range.begin, range.end - range.begin);
  }
}

LinearStep::LinearStep(Encoding encoding, std::vector<Product> products)
    : encoding_(std::move(encoding)), products_(std::move(products)) {
  kind = "linear";
  row_local = false;
  for (const Product& product : products_) {
    if (product.residual.defined()) reads.push_back(product.residual);
    writes.push_back(product.y);
  }
}

void LinearStep::run(const Pass& pass, int thread) const {
  const int64_t rows = pass.count(space);
  if (rows == 0) return;
  std::array<cpu::Activations, kMaxProducts> inputs;
  for (size_t i = 0; i < encoding_.formats.size(); ++i) inputs[i] = encoding_.place(pass, rows, i);
  std::array<cpu::LinearOp, kMaxProducts> ops;
  for (size_t i = 0; i < products_.size(); ++i) {
    const Product& product = products_[i];
    cpu::LinearOp& op = ops[i];
    const RowView y = pass.view(product.y);
    op.weight = product.weight;
    op.up = product.up;
    op.input = &inputs[product.format];
    op.bias = product.bias;
    op.up_bias = product.up_bias;
    op.activation = product.activation;
    if (product.residual.defined()) {
      const RowView residual = pass.view(product.residual);
      op.residual = residual.data;
      op.residual_stride = residual.stride;
    }
    op.y = y.data;
    op.y_stride = y.stride;
    op.rows = rows;
  }
  cpu::linear({ops.data(), products_.size()}, thread, pass.threads, *pass.linear_scratch);
}

int64_t LinearStep::bytes(const Pass& pass) const {
  if (pass.count(space) == 0) return 0;
  int64_t bytes = 0;
  for (const Product& product : products_) {
    bytes += product.weight->byte_size() + (product.up != nullptr ? product.up->byte_size() : 0);
  }
  return bytes;
}

int64_t LinearStep::row_work() const {
  int64_t work = 0;
  for (const Product& product : products_) {
    work += product.weight->rows() * product.weight->cols() * (product.up != nullptr ? 2 : 1);
  }
  return work;
}

std::string LinearStep::detail() const {
  std::string text;
  for (const Product& product : products_) {
    const PackedSpec& spec = product.weight->spec();
    if (!text.empty()) text += " + ";
    text += concat(spec.cols, " -> ", spec.rows, " ", to_string(spec.layout));
    if (product.up != nullptr) text += ", gated";
    if (product.residual.defined()) text += ", residual";
  }
  return text;
}

}  // namespace quern::runtime
