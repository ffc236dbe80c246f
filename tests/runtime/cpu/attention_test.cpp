#include "runtime/cpu/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "runtime/cpu/isa.h"

namespace quern::cpu {
namespace {

// A sequence's keys, values and queries, cached in blocks; what nobody wrote is NaN.
class Case {
 public:
  Case(AttentionShape shape, int64_t positions, unsigned seed) : shape_(shape), positions_(positions) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, int64_t n) {
      v.resize(static_cast<size_t>(n));
      for (float& x : v) x = normal(random);
    };
    fill(q_, positions * shape.heads * shape.head_size);
    fill(k_, positions * shape.kv_heads * shape.head_size);
    fill(v_, positions * shape.kv_heads * shape.value_size);
    fill(sinks_, shape.heads);
    fill(key_scales_, shape.kv_heads * shape.head_size);
    for (float& scale : key_scales_) scale = 0.25f + std::fabs(scale);
    if (shape.key_scales != nullptr) shape_.key_scales = key_scales_.data();
    slopes_.resize(static_cast<size_t>(shape.heads));
    for (size_t h = 0; h < slopes_.size(); ++h) slopes_[h] = std::ldexp(1.0f, -static_cast<int>(h % 8) - 1);
    if (shape.sinks != nullptr) shape_.sinks = sinks_.data();
    if (shape.slopes != nullptr) shape_.slopes = slopes_.data();
    for (int64_t b = 0; b <= (positions - 1) / kCacheBlock; ++b) {
      storage_.emplace_back(static_cast<size_t>(shape_.block_bytes()) / 4, std::nanf(""));
      if (shape_.cache_dtype == DType::F16) {
        std::memset(storage_.back().data(), 0x7E, static_cast<size_t>(shape_.block_bytes()));
      }
      blocks_.push_back(reinterpret_cast<const std::byte*>(storage_.back().data()));
    }
  }

  void append(const AttentionKernels& kernels, int64_t from, int64_t to) {
    for (int64_t p = from; p < to; ++p) {
      auto* block = reinterpret_cast<std::byte*>(storage_[static_cast<size_t>(p / kCacheBlock)].data());
      for (int64_t h = 0; h < shape_.kv_heads; ++h) {
        kernels.append(shape_, block, h, p % kCacheBlock,
                       k_.data() + (p * shape_.kv_heads + h) * shape_.head_size,
                       v_.data() + (p * shape_.kv_heads + h) * shape_.value_size);
      }
    }
  }

  // The outputs of positions first .. first + tokens - 1, in tiles of `tile_tokens` x `tile_heads`.
  std::vector<float> run(const AttentionKernels& kernels, int64_t first, int64_t tokens, int64_t tile_tokens,
                         int64_t tile_heads, bool by_spans = false) const {
    const int64_t width = shape_.heads * shape_.value_size;
    std::vector<float> out(static_cast<size_t>(tokens * width), -1.0f);
    std::vector<float> scratch(static_cast<size_t>(AttentionScratch::floats(shape_)));
    for (int64_t kv = 0; kv < shape_.kv_heads; ++kv) {
      for (int64_t t = 0; t < tokens; t += tile_tokens) {
        for (int64_t h = 0; h < shape_.group(); h += tile_heads) {
          AttentionTile tile;
          tile.first_head = kv * shape_.group() + h;
          tile.heads = std::min(tile_heads, shape_.group() - h);
          tile.tokens = std::min(tile_tokens, tokens - t);
          tile.first_position = first + t;
          tile.q_stride = shape_.heads * shape_.head_size;
          tile.q = q_.data() + (first + t) * tile.q_stride + tile.first_head * shape_.head_size;
          tile.out_stride = width;
          tile.out = out.data() + t * width + tile.first_head * shape_.value_size;
          tile.blocks = blocks_.data();
          if (!by_spans) {
            kernels.attend(shape_, tile, scratch.data());
            continue;
          }
          const SpanRange spans = spans_of(shape_, tile);
          const int64_t stride = AttentionScratch::state_floats(shape_);
          std::vector<float> states(static_cast<size_t>(stride * (spans.last - spans.first + 1)));
          for (int64_t s = spans.last; s >= spans.first; --s) {
            kernels.attend_span(shape_, tile, s, states.data() + (s - spans.first) * stride, scratch.data());
          }
          kernels.finish(shape_, tile, states.data(), stride, spans.last - spans.first + 1);
        }
      }
    }
    return out;
  }

  const AttentionShape& shape() const { return shape_; }
  const std::byte* block(size_t i) const { return blocks_[i]; }
  int64_t positions() const { return positions_; }

 private:
  AttentionShape shape_;
  int64_t positions_;
  std::vector<float> q_, k_, v_, sinks_, slopes_, key_scales_;
  std::vector<std::vector<float>> storage_;
  std::vector<const std::byte*> blocks_;
};

constexpr float kOn = 1.0f;
constexpr DType kDTypes[] = {DType::F32, DType::F16, DType::I8, DType::I4};

struct NamedShape {
  const char* name;
  AttentionShape shape;
};

std::vector<NamedShape> shapes() {
  std::vector<NamedShape> out;
  const auto add = [&](const char* name, int64_t heads, int64_t kv_heads, int64_t head_size,
                       int64_t value_size) {
    AttentionShape shape;
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    shape.head_size = head_size;
    shape.value_size = value_size;
    shape.scale = 1.0f / std::sqrt(static_cast<float>(head_size));
    out.push_back({name, shape});
    return &out.back().shape;
  };
  add("llama", 8, 2, 64, 64);
  add("single head", 1, 1, 32, 32);
  add("odd sizes", 6, 3, 20, 13);
  add("tiny", 4, 4, 8, 8);
  add("multi-query", 30, 1, 48, 48);
  add("wide", 2, 1, 256, 256);
  add("softcap", 4, 2, 40, 40)->softcap = 3.0f;
  add("window", 4, 2, 32, 32)->window = 70;
  add("narrow window", 4, 2, 32, 32)->window = 5;
  add("sinks", 4, 2, 32, 32)->sinks = &kOn;
  add("alibi", 8, 8, 24, 24)->slopes = &kOn;
  AttentionShape* all = add("all of it", 6, 2, 80, 72);
  all->softcap = 20.0f;
  all->window = 600;
  all->sinks = &kOn;
  all->slopes = &kOn;
  all->key_scales = &kOn;
  add("odd head", 2, 1, 21, 17)->key_scales = &kOn;
  return out;
}

class AttentionTest : public testing::TestWithParam<Isa> {
 protected:
  AttentionTest() : forced_(GetParam()) {}

 private:
  ForcedKernels forced_;
};

TEST_P(AttentionTest, MatchesTheReference) {
  for (NamedShape named : shapes()) {
    for (const DType dtype : kDTypes) {
      named.shape.cache_dtype = dtype;
      Case test(named.shape, 1100, 7);
      test.append(attention_kernels(), 0, test.positions());
      for (const auto& [first, tokens] : {std::pair<int64_t, int64_t>{0, 9}, {62, 5}, {1096, 4}}) {
        const std::vector<float> got = test.run(attention_kernels(), first, tokens, 4, 3);
        const std::vector<float> wanted = test.run(reference_attention_kernels(), first, tokens, 4, 3);
        for (size_t i = 0; i < got.size(); ++i) {
          ASSERT_NEAR(got[i], wanted[i], 5e-6f)
              << named.name << ", " << to_string(dtype) << ", element " << i;
        }
      }
    }
  }
}

// Neither the tiles nor what later positions hold may change a bit.
TEST_P(AttentionTest, DoesNotDependOnTheTiling) {
  size_t turn = 0;
  for (NamedShape named : shapes()) {
    named.shape.cache_dtype = kDTypes[turn++ % std::size(kDTypes)];
    Case test(named.shape, 600, 11);
    const AttentionKernels& kernels = attention_kernels();
    std::vector<float> one_by_one;
    const int64_t first = 504, tokens = 14;
    test.append(kernels, 0, first);
    for (int64_t p = first; p < first + tokens; ++p) {
      test.append(kernels, p, p + 1);
      const std::vector<float> row =
          test.run(kernels, p, 1, 1, named.shape.group() > 24 ? 24 : named.shape.group());
      one_by_one.insert(one_by_one.end(), row.begin(), row.end());
    }
    test.append(kernels, first + tokens, test.positions());
    const auto same = [&](const std::vector<float>& other) {
      return std::memcmp(one_by_one.data(), other.data(), other.size() * sizeof(float)) == 0;
    };
    for (const auto& [tile_tokens, tile_heads] :
         {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {14, 1}, {3, 2}, {5, 4}}) {
      EXPECT_TRUE(same(test.run(kernels, first, tokens, tile_tokens, tile_heads)))
          << named.name << ", tile " << tile_tokens << " x " << tile_heads;
      EXPECT_TRUE(same(test.run(kernels, first, tokens, tile_tokens, tile_heads, true)))
          << named.name << ", tile " << tile_tokens << " x " << tile_heads << " by spans";
    }
  }
}

TEST_P(AttentionTest, CopiesSlots) {
  for (NamedShape named : shapes()) {
    for (const DType dtype : kDTypes) {
      named.shape.cache_dtype = dtype;
      Case test(named.shape, kCacheBlock, 3);
      test.append(attention_kernels(), 0, kCacheBlock);
      const AttentionShape& shape = test.shape();
      std::vector<std::byte> to(static_cast<size_t>(shape.block_bytes())), wanted(to.size());
      const int64_t head = shape.kv_heads - 1;
      attention_kernels().copy_slots(shape, head, test.block(0), 13, to.data(), 40, 9);
      reference_attention_kernels().copy_slots(shape, head, test.block(0), 13, wanted.data(), 40, 9);
      EXPECT_EQ(to, wanted) << named.name << ", " << to_string(dtype);
      // Within a block, to lower slots.
      std::memcpy(to.data(), test.block(0), to.size());
      attention_kernels().copy_slots(shape, head, to.data(), 40, to.data(), 37, 9);
      std::vector<std::byte> back(to.size());
      std::memcpy(back.data(), to.data(), to.size());
      attention_kernels().copy_slots(shape, head, test.block(0), 40, back.data(), 37, 9);
      EXPECT_EQ(to, back) << named.name << ", " << to_string(dtype);
    }
  }
}

// Integers of the kernels against those of the reference: the same but for ties, and near what they stand
// for.
TEST_P(AttentionTest, CodesAreTheReferences) {
  for (NamedShape named : shapes()) {
    for (const DType dtype : {DType::I8, DType::I4}) {
      named.shape.cache_dtype = dtype;
      Case ours(named.shape, kCacheBlock, 5), theirs(named.shape, kCacheBlock, 5);
      ours.append(attention_kernels(), 0, kCacheBlock);
      theirs.append(reference_attention_kernels(), 0, kCacheBlock);
      const AttentionShape& shape = ours.shape();
      int64_t different = 0, codes = 0;
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        const auto* a = ours.block(0) + head * shape.head_bytes();
        const auto* b = theirs.block(0) + head * shape.head_bytes();
        codes += shape.key_bytes() + shape.value_bytes();
        for (int64_t i = 0; i < shape.key_bytes() + shape.value_bytes(); ++i) different += a[i] != b[i];
        const int64_t scales = shape.key_bytes() + shape.value_bytes();
        for (int64_t i = 0; i < 2 * kCacheBlock; ++i) {
          const float x = reinterpret_cast<const float*>(a + scales)[i];
          const float y = reinterpret_cast<const float*>(b + scales)[i];
          // Two ranges may be as good as one another.
          if (dtype == DType::I8) {
            EXPECT_NEAR(x, y, 1e-6f * std::fabs(y)) << named.name;
          }
        }
      }
      EXPECT_LE(different, codes / 100) << named.name << ", " << to_string(dtype);
    }
  }
}

// A channel that is large in every key costs the others nothing once it has a scale; nor does a token of
// large keys cost another token anything.
TEST_P(AttentionTest, ScalesOfChannelsContainOutliers) {
  AttentionShape shape;
  shape.heads = shape.kv_heads = 1;
  shape.head_size = shape.value_size = 32;
  shape.scale = 1.0f / 32;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> q(32), scales(32, 1.0f);
  for (float& x : q) x = normal(random);
  q[5] = 0.05f;
  scales[5] = 40.0f;
  std::vector<std::vector<float>> keys(kCacheBlock, std::vector<float>(32)), values = keys;
  for (auto& key : keys) {
    for (float& x : key) x = normal(random);
    key[5] *= 40.0f;
  }
  for (auto& value : values) {
    for (float& x : value) x = normal(random);
  }
  const auto run = [&](DType dtype, const float* channel_scales) {
    AttentionShape s = shape;
    s.cache_dtype = dtype;
    s.key_scales = channel_scales;
    std::vector<float> block(static_cast<size_t>(s.block_bytes()) / 4);
    for (int64_t p = 0; p < kCacheBlock; ++p) {
      attention_kernels().append(s, reinterpret_cast<std::byte*>(block.data()), 0, p,
                                 keys[static_cast<size_t>(p)].data(), values[static_cast<size_t>(p)].data());
    }
    const auto* at = reinterpret_cast<const std::byte*>(block.data());
    std::vector<float> out(32), scratch(static_cast<size_t>(AttentionScratch::floats(s)));
    AttentionTile tile{.q = q.data(),
                       .q_stride = 32,
                       .out = out.data(),
                       .out_stride = 32,
                       .tokens = 1,
                       .first_position = kCacheBlock - 1,
                       .first_head = 0,
                       .heads = 1,
                       .blocks = &at};
    attention_kernels().attend(s, tile, scratch.data());
    return out;
  };
  const auto error = [&](const std::vector<float>& out) {
    const std::vector<float> wanted = run(DType::F32, nullptr);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += std::pow(double{out[i]} - double{wanted[i]}, 2);
    return sum;
  };
  for (const DType dtype : {DType::I8, DType::I4}) {
    const double without = error(run(dtype, nullptr)), with = error(run(dtype, scales.data()));
    EXPECT_LT(with, 0.7 * without) << to_string(dtype);
  }
}

TEST_P(AttentionTest, IntegersOfZerosAndOfWhatIsNotFinite) {
  for (const DType dtype : {DType::I8, DType::I4}) {
    AttentionShape shape;
    shape.heads = shape.kv_heads = 1;
    shape.head_size = shape.value_size = 16;
    shape.scale = 1;
    shape.cache_dtype = dtype;
    const auto run = [&](float first) {
      std::vector<float> block(static_cast<size_t>(shape.block_bytes()) / 4), x(16), q(16, 1.0f), out(16);
      x[0] = first;
      auto* at = reinterpret_cast<std::byte*>(block.data());
      attention_kernels().append(shape, at, 0, 0, x.data(), x.data());
      const std::byte* blocks = at;
      std::vector<float> scratch(static_cast<size_t>(AttentionScratch::floats(shape)));
      AttentionTile tile{.q = q.data(),
                         .q_stride = 16,
                         .out = out.data(),
                         .out_stride = 16,
                         .tokens = 1,
                         .first_position = 0,
                         .first_head = 0,
                         .heads = 1,
                         .blocks = &blocks};
      attention_kernels().attend(shape, tile, scratch.data());
      return out[0];
    };
    EXPECT_EQ(run(0), 0);
    EXPECT_NEAR(run(1e-44f), 0, 1e-44f) << "hardly a scale can stand for it";
    EXPECT_NEAR(run(1e37f), 1e37f, 1e35f) << "scales don't overflow as those of binary16 would";
    EXPECT_TRUE(std::isnan(run(INFINITY)));
    EXPECT_TRUE(std::isnan(run(NAN)));
  }
}

// What binary16 can't hold becomes its largest number, so that one overflow does not turn a text into NaN.
TEST_P(AttentionTest, SaturatesHalfPrecision) {
  AttentionShape shape;
  shape.heads = shape.kv_heads = 1;
  shape.head_size = shape.value_size = 16;
  shape.cache_dtype = DType::F16;
  std::vector<uint16_t> block(static_cast<size_t>(shape.block_bytes()) / 2);
  const std::vector<float> k(16, 1e6f), v(16, -1e6f);
  attention_kernels().append(shape, reinterpret_cast<std::byte*>(block.data()), 0, 0, k.data(), v.data());
  EXPECT_EQ(block[0], 0x7BFF);
  EXPECT_EQ(block[static_cast<size_t>(shape.key_elements())], 0xFBFF);
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, AttentionTest, testing::ValuesIn(supported_isas()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

}  // namespace
}  // namespace quern::cpu
