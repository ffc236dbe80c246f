// The products of a Llama shape of 1.1 billion parameters (22 layers, width 2048, feed-forward 5632, 32
// heads, 4 KV heads, vocabulary 32000) by quern's kernels: for each weight format and number of rows the time
// of a pass, the rate at which the weights were read as a share of the memory bandwidth, the rate of
// arithmetic as a share of the peak, and the ratio to oneDNN's own products of the same shapes (f32, and u8
// by s8 into s32).
//
//   linear_bench [--threads N] [--formats int8,int4g32,...] [--rows 1,4,512]
//                [--mode a16|a8|bf16] [--layers N] [--megabytes N]
//                [--repetitions N] [--best] [--no-onednn]
//
// Each product is timed by itself, over layers whose weights are too large for the caches together; the
// figure of a product is the median (or, with --best, the least) of its times, and a pass is the sum over its
// products: on a busy machine the least is what the program is responsible for. The bandwidth and the peaks
// are measured in the same way in the same run.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "runtime/cpu/linear.h"
#include "runtime/cpu/machine.h"

namespace quern::cpu {
namespace {

using Clock = std::chrono::steady_clock;
using Granularity = QuantScheme::Granularity;

struct Options {
  int threads = 0;
  std::vector<std::string> formats = {"f32",      "f16",  "bf16",    "int8",    "int8g32",
                                      "int8g128", "int4", "int4g32", "int4g128"};
  std::vector<int64_t> rows = {1, 2, 3, 4, 5, 6, 8, 12, 16, 32, 128, 512};
  ActivationMode mode = ActivationMode::A16;
  int64_t megabytes = 400;
  int64_t layers = 22;
  int repetitions = 5;
  bool onednn = true;
  bool best = false;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> out(1);
  for (const char c : text) {
    if (c == ',') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

Options parse(int argc, char** argv) {
  Options out;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--no-onednn") {
      out.onednn = false;
      continue;
    }
    if (name == "--best") {
      out.best = true;
      continue;
    }
    if (i + 1 == argc) throw_error(ErrorCode::InvalidArgument, name, " needs a value");
    const std::string value = argv[++i];
    if (name == "--threads") {
      out.threads = std::stoi(value);
    } else if (name == "--formats") {
      out.formats = split(value);
    } else if (name == "--rows") {
      out.rows.clear();
      for (const std::string& row : split(value)) out.rows.push_back(std::stoll(row));
    } else if (name == "--mode") {
      out.mode =
          value == "a8" ? ActivationMode::A8 : (value == "bf16" ? ActivationMode::BF16 : ActivationMode::A16);
    } else if (name == "--megabytes") {
      out.megabytes = std::stoll(value);
    } else if (name == "--layers") {
      out.layers = std::stoll(value);
    } else if (name == "--repetitions") {
      out.repetitions = std::stoi(value);
    } else {
      throw_error(ErrorCode::InvalidArgument, "unknown option ", name);
    }
  }
  return out;
}

double seconds_of(const auto& body) {
  const Clock::time_point start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One of a layer's products (or the head): weights that share an input, gated or side by side.
struct ProductShape {
  const char* name;
  std::vector<int64_t> n;
  int64_t k;
  bool gated;
  int64_t count;  // in the model
};

std::vector<ProductShape> llama(int64_t layers) {
  return {{"qkv", {2048, 256, 256}, 2048, false, layers},
          {"o", {2048}, 2048, false, layers},
          {"gate up", {5632, 5632}, 2048, true, layers},
          {"down", {2048}, 5632, false, layers},
          {"head", {32000}, 2048, false, 1}};
}

// 16 outputs of the format: the tile that a weight repeats.
PackedTensor one_tile(const std::string& format, int64_t k) {
  std::mt19937 random(1);
  if (format == "f32" || format == "f16" || format == "bf16") {
    Tensor weight = Tensor::zeros(DType::F32, {16, k});
    for (float& value : weight.mutable_data<float>()) value = std::normal_distribution<float>()(random);
    return pack(weight.cast(dtype_from_string(format)));
  }
  const bool four = format.starts_with("int4");
  const size_t g = format.find('g');
  QuantizedTensor out;
  out.scheme.code = four ? DType::I4 : DType::I8;
  out.codes = Tensor::zeros(out.scheme.code, {16, k});
  for (int64_t i = 0; i < out.codes.size(); ++i) out.codes.set_int(i, static_cast<int64_t>(random() >> 8));
  Shape scales = {16};
  if (g != std::string::npos) {
    out.scheme.granularity = Granularity::Group;
    out.scheme.axis = 1;
    out.scheme.group_size = std::stoll(format.substr(g + 1));
    scales.push_back((k + out.scheme.group_size - 1) / out.scheme.group_size);
  }
  out.scales = Tensor::zeros(scales.size() == 2 ? DType::F16 : DType::F32, scales);
  for (int64_t i = 0; i < out.scales.size(); ++i) out.scales.set(i, 0.01);
  return pack(out);
}

PackedTensor repeated(const PackedTensor& tile, int64_t n) {
  PackedSpec spec = tile.spec();
  spec.rows = n;
  Tensor bytes = Tensor::zeros(DType::U8, {spec.byte_size()});
  std::byte* out = bytes.mutable_bytes();
  for (int64_t t = 0; t < spec.tiles(); ++t) {
    std::memcpy(out + t * spec.tile_stride(), tile.data(), static_cast<size_t>(spec.tile_stride()));
  }
  return {spec, std::move(bytes)};
}

struct Weights {
  ProductShape shape;
  std::vector<std::vector<PackedTensor>> copies;  // of the product's weights, in different memory
  int64_t bytes = 0;                              // of one copy
};

std::vector<Weights> make_weights(const std::string& format, const Options& options) {
  std::vector<Weights> out;
  int64_t layer_bytes = 0;
  for (const ProductShape& shape : llama(options.layers)) {
    Weights weights{shape, {}, 0};
    const PackedTensor tile = one_tile(format, shape.k);
    std::vector<PackedTensor> first;
    for (const int64_t n : shape.n) first.push_back(repeated(tile, n));
    for (const PackedTensor& weight : first) weights.bytes += weight.byte_size();
    if (shape.count > 1) layer_bytes += weights.bytes;
    weights.copies.push_back(std::move(first));
    out.push_back(std::move(weights));
  }
  const int64_t wanted = std::clamp<int64_t>((options.megabytes << 20) / layer_bytes, 1, options.layers);
  for (Weights& weights : out) {
    if (weights.shape.count == 1) continue;
    for (int64_t i = 1; i < wanted; ++i) {
      std::vector<PackedTensor> copy;
      for (const PackedTensor& weight : weights.copies[0]) {
        Tensor bytes = weight.bytes();
        bytes.mutable_bytes();  // makes them this copy's own
        copy.emplace_back(weight.spec(), std::move(bytes));
      }
      weights.copies.push_back(std::move(copy));
    }
  }
  return out;
}

double typical(std::vector<double> times, bool best) {
  std::sort(times.begin(), times.end());
  return best ? times.front() : times[times.size() / 2];
}

struct Bench {
  Options options;
  ThreadTeam team;
  LinearScratch scratch;
  MachineRates machine;

  explicit Bench(const Options& o)
      : options(o), team(o.threads), scratch(team.size()), machine(measure_machine(team)) {}

  // Seconds of a pass over all products with `rows` rows, encoding included; reads are timed between the
  // products.
  struct Pass {
    double seconds = 0;
    double read_seconds = 0;  // of reading the same bytes
    double bytes = 0;
  };

  Pass run(std::vector<Weights>& weights, int64_t rows) {
    Pass pass;
    for (Weights& w : weights) {
      const ActivationFormat format = activation_format(w.copies[0][0].spec(), options.mode);
      Tensor memory = Tensor::zeros(DType::U8, {Activations::byte_size(format, rows)});
      const Activations input =
          Activations::place(format, rows, {memory.mutable_bytes(), static_cast<size_t>(memory.byte_size())});
      std::vector<float> x(static_cast<size_t>(rows * w.shape.k));
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) * 0.02F;
      int64_t width = 0;
      for (const int64_t n : w.shape.n) width += n;
      std::vector<float> y(static_cast<size_t>(rows * width));
      std::vector<double> times;
      std::vector<double> reads;
      const int repetitions = rows > 64 ? std::min(2, options.repetitions) : options.repetitions;
      for (int repetition = 0; repetition < repetitions; ++repetition) {
        for (size_t copy = 0; copy < w.copies.size() && (rows <= 64 || copy < 3); ++copy) {
          std::vector<LinearOp> ops = ops_of(w, copy, input, y.data(), width, rows);
          const ThreadTeam::Hot hot(team);
          times.push_back(seconds_of([&] {
            input.encode(x.data(), w.shape.k, team);
            linear(ops, team, scratch);
          }));
          const PackedTensor& other = w.copies[(copy + w.copies.size() / 2) % w.copies.size()][0];
          if (rows == 1) {
            const double gbps = measure_read_gbps(team, other.data(), other.byte_size());
            reads.push_back(static_cast<double>(w.bytes) / gbps / 1e9);
          }
        }
      }
      const auto count = static_cast<double>(w.shape.count);
      pass.seconds += count * typical(times, options.best);
      if (!reads.empty()) pass.read_seconds += count * typical(reads, options.best);
      pass.bytes += count * static_cast<double>(w.bytes);
    }
    return pass;
  }

  static std::vector<LinearOp> ops_of(const Weights& w, size_t copy, const Activations& input, float* y,
                                      int64_t width, int64_t rows) {
    std::vector<LinearOp> ops;
    int64_t column = 0;
    const std::vector<PackedTensor>& tensors = w.copies[copy];
    for (size_t i = 0; i < tensors.size(); i += w.shape.gated ? 2 : 1) {
      LinearOp op{.weight = &tensors[i], .input = &input, .y = y + column, .y_stride = width, .rows = rows};
      if (w.shape.gated) {
        op.up = &tensors[i + 1];
        op.activation = Unary::Silu;
      }
      column += tensors[i].rows();
      ops.push_back(op);
    }
    return ops;
  }
};

// oneDNN's time for the same products, weights in the layout it prefers.
double onednn_pass(const Options& options, int64_t rows, bool integers) {
  using dnnl::memory;
  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  double seconds = 0;
  for (const ProductShape& shape : llama(options.layers)) {
    int64_t n = 0;
    for (const int64_t part : shape.n) n += part;
    const auto in = integers ? memory::data_type::u8 : memory::data_type::f32;
    const auto weight = integers ? memory::data_type::s8 : memory::data_type::f32;
    const auto out = integers ? memory::data_type::s32 : memory::data_type::f32;
    const memory::desc src({rows, shape.k}, in, memory::format_tag::ab);
    const memory::desc dst({rows, n}, out, memory::format_tag::ab);
    const memory::desc any({shape.k, n}, weight, memory::format_tag::any);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine, src, any, dst);
#else
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(src, any, dst), engine);
#endif
    const dnnl::matmul matmul(description);
    const int64_t copies =
        rows > 64 ? 2 : std::max<int64_t>(2, (options.megabytes << 20) / (n * shape.k * (integers ? 1 : 4)));
    std::vector<memory> weights;
    for (int64_t i = 0; i < std::min(copies, shape.count); ++i) {
      weights.emplace_back(description.weights_desc(), engine);
      std::memset(weights.back().get_data_handle(), 0, description.weights_desc().get_size());
    }
    const memory x(src, engine);
    const memory y(dst, engine);
    std::memset(x.get_data_handle(), 0, src.get_size());
    std::vector<double> times;
    for (int repetition = 0; repetition < (rows > 64 ? 3 : options.repetitions); ++repetition) {
      for (memory& w : weights) {
        times.push_back(seconds_of([&] {
          matmul.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}, {DNNL_ARG_DST, y}});
          stream.wait();
        }));
      }
    }
    seconds += static_cast<double>(shape.count) * typical(times, options.best);
  }
  return seconds;
}

double weights_of(const Options& options) {
  double out = 0;
  for (const ProductShape& shape : llama(options.layers)) {
    for (const int64_t n : shape.n) out += static_cast<double>(n * shape.k * shape.count);
  }
  return out;
}

double peak_of(const MachineRates& machine, const std::string& format, ActivationMode mode) {
  if (format == "bf16" && mode == ActivationMode::BF16 && machine.bf16_all > 0) return machine.bf16_all;
  if (format == "f32" || format == "f16" || format == "bf16") return machine.fp32_all;
  return format.starts_with("int4") && mode == ActivationMode::A8 ? machine.int4_all : machine.int8_all;
}

void print_machine(const MachineRates& m) {
  std::printf(
      "%s, %d threads: read %.1f GB/s (one thread %.1f); fp32 %.0f GFLOPS, bf16 %.0f, int8 %.0f GOPS, "
      "int4 by int8 %.0f (one thread %.0f, %.0f, %.0f, %.0f); empty region %.2f us\n",
      std::string(to_string(m.isa)).c_str(), m.threads, m.read_gbps_all, m.read_gbps_one, m.fp32_all,
      m.bf16_all, m.int8_all, m.int4_all, m.fp32_one, m.bf16_one, m.int8_one, m.int4_one, m.fork_join_us);
}

void run(const Options& options) {
  Bench bench(options);
  print_machine(bench.machine);
  std::map<std::pair<int64_t, bool>, double> onednn;
  const double weights_total = weights_of(options);
  std::printf("%-9s %5s %10s %8s %7s %8s %6s %9s %8s\n", "format", "rows", "ms", "GB/s", "of read", "GOPS",
              "of peak", "per row", "oneDNN");
  for (const std::string& format : options.formats) {
    std::vector<Weights> weights = make_weights(format, options);
    double read_gbps = bench.machine.read_gbps_all;
    double one_row = 0;
    for (const int64_t rows : options.rows) {
      const Bench::Pass pass = bench.run(weights, rows);
      if (pass.read_seconds > 0) read_gbps = pass.bytes / pass.read_seconds / 1e9;
      if (rows == 1) one_row = pass.seconds;
      const double gbps = pass.bytes / pass.seconds / 1e9;
      const double gops = 2 * weights_total * static_cast<double>(rows) / pass.seconds / 1e9;
      std::printf("%-9s %5lld %10.3f %8.1f %6.0f%% %8.0f %5.0f%%", format.c_str(),
                  static_cast<long long>(rows), pass.seconds * 1e3, gbps, 100 * gbps / read_gbps, gops,
                  100 * gops / peak_of(bench.machine, format, options.mode));
      std::printf(" %8.2fx", one_row > 0 ? pass.seconds / one_row : 0.0);
      if (options.onednn) {
        const bool integers = format.starts_with("int");
        double& other = onednn[{rows, integers}];
        if (other == 0) other = onednn_pass(options, rows, integers);
        std::printf(" %7.2fx", other / pass.seconds);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace
}  // namespace quern::cpu

int main(int argc, char** argv) {
  try {
    quern::cpu::run(quern::cpu::parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "linear_bench: %s\n", error.what());
    return 1;
  }
}
