#include "runtime/plain/multiplier.h"

#include <bit>
#include <map>
#include <tuple>
#include <type_traits>

#include "runtime/plain/onednn.h"
#include "runtime/plain/parallel.h"

namespace quern::runtime::plain {
namespace {

using dnnl::memory;

class Multiplier {
 public:
  explicit Multiplier(const Product& p) : has_bias_(p.bias) {
    describe(p);
    dnnl::primitive_attr attributes;
    dnnl::post_ops post;
#if DNNL_VERSION_MAJOR >= 3
    if (p.alpha != 1) post.append_eltwise(dnnl::algorithm::eltwise_linear, p.alpha, 0);
#else
    if (p.alpha != 1) attributes.set_output_scales(0, {p.alpha});
#endif
    if (p.beta != 0) post.append_sum(p.beta);
    attributes.set_post_ops(post);
#if DNNL_VERSION_MAJOR >= 3
    primitive_ = p.bias ? dnnl::matmul({engine(), a_, b_, bias_, out_, attributes})
                        : dnnl::matmul({engine(), a_, b_, out_, attributes});
#else
    const dnnl::matmul::desc desc =
        p.bias ? dnnl::matmul::desc(a_, b_, bias_, out_) : dnnl::matmul::desc(a_, b_, out_);
    primitive_ = dnnl::matmul({desc, attributes, engine()});
#endif
  }

  void run(const float* a, const float* b, float* out, const float* bias) const {
    std::unordered_map<int, memory> arguments = {
        {DNNL_ARG_SRC, view(a_, a)}, {DNNL_ARG_WEIGHTS, view(b_, b)}, {DNNL_ARG_DST, view(out_, out)}};
    if (has_bias_) arguments.emplace(DNNL_ARG_BIAS, view(bias_, bias));
    execute(primitive_, arguments);
  }

 private:
  void describe(const Product& p) {
    const auto f32 = memory::data_type::f32;
    const memory::dims a_strides =
        p.transpose_a ? memory::dims{p.m * p.k, 1, p.m} : memory::dims{p.m * p.k, p.k, 1};
    const memory::dims b_strides =
        p.transpose_b ? memory::dims{p.k * p.n, 1, p.k} : memory::dims{p.k * p.n, p.n, 1};
    if (p.batch == 1) {
      a_ = memory::desc({p.m, p.k}, f32, {a_strides[1], a_strides[2]});
      b_ = memory::desc({p.k, p.n}, f32, {b_strides[1], b_strides[2]});
      out_ = memory::desc({p.m, p.n}, f32, memory::format_tag::ab);
      bias_ = memory::desc({1, p.n}, f32, memory::format_tag::ab);
      return;
    }
    a_ = memory::desc({p.batch, p.m, p.k}, f32, a_strides);
    b_ = memory::desc({p.batch, p.k, p.n}, f32, b_strides);
    out_ = memory::desc({p.batch, p.m, p.n}, f32, memory::format_tag::abc);
  }

  memory::desc a_, b_, bias_, out_;
  bool has_bias_;
  dnnl::matmul primitive_;
};

// Factors by their bits: a NaN is less than nothing and equal to nothing, and comes from hostile models.
auto key_of(const Product& p) {
  // What oneDNN prepares is for a number of threads.
  return std::tuple(most_shares(), p.batch, p.m, p.k, p.n, p.transpose_a, p.transpose_b, p.bias,
                    std::bit_cast<uint32_t>(p.alpha), std::bit_cast<uint32_t>(p.beta));
}

}  // namespace

void multiply(const Product& product, const float* a, const float* b, float* out, const float* bias) {
  // Sequence lengths vary without end, so that the shelf is emptied now and then.
  constexpr size_t kMost = 256;
  const auto key = key_of(product);
  thread_local std::map<std::remove_const_t<decltype(key)>, Multiplier> kept;
  auto found = kept.find(key);
  if (found == kept.end()) {
    if (kept.size() >= kMost) kept.clear();
    found = kept.emplace(key, Multiplier(product)).first;
  }
  found->second.run(a, b, out, bias);
}

}  // namespace quern::runtime::plain
