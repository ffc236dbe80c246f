#include "runtime/plain/onednn.h"

namespace quern::runtime::plain {

const dnnl::engine& engine() {
  static const dnnl::engine instance(dnnl::engine::kind::cpu, 0);
  return instance;
}

dnnl::memory view(const dnnl::memory::desc& description, const void* data) {
  return {description, engine(), const_cast<void*>(data)};
}

void execute(const dnnl::primitive& primitive, const std::unordered_map<int, dnnl::memory>& arguments) {
  dnnl::stream stream(engine());
  primitive.execute(stream, arguments);
  stream.wait();
}

dnnl::memory reordered(const dnnl::memory& from, const dnnl::memory::desc& to) {
  if (from.get_desc() == to) return from;
  dnnl::memory out(to, engine());
  execute(dnnl::reorder(from, out), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, out}});
  return out;
}

}  // namespace quern::runtime::plain
