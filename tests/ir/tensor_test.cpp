#include "ir/tensor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ir/float_types.h"

namespace quern {
namespace {

TEST(Tensor, SubByteElementsArePackedLowBitsFirst) {
  Tensor tensor = Tensor::zeros(DType::I4, {3});
  tensor.set_int(0, -8);
  tensor.set_int(1, 7);
  tensor.set_int(2, -1);
  EXPECT_EQ(tensor.byte_size(), 2);
  EXPECT_EQ(static_cast<int>(tensor.bytes()[0]), 0x78);
  EXPECT_EQ(tensor.to_ints(), (std::vector<int64_t>{-8, 7, -1}));
}

TEST(Tensor, WritingACopyLeavesTheOriginal) {
  const Tensor original = Tensor::from<float>({2}, {1.0F, 2.0F});
  Tensor copy = original;
  copy.mutable_data<float>()[0] = 9.0F;
  EXPECT_EQ(original.at(0), 1.0);
  EXPECT_EQ(copy.at(0), 9.0);
}

TEST(Tensor, ShapeOverflowIsAnError) {
  EXPECT_THROW(element_count({int64_t{1} << 40, int64_t{1} << 40}), Error);
  EXPECT_EQ(element_count({int64_t{1} << 40, 0, int64_t{1} << 40}), 0);
}

TEST(FloatTypes, HalfRoundTripsEveryPattern) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = f16_to_f32(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else {
      ASSERT_EQ(f32_to_f16(value), bits);
    }
  }
}

TEST(FloatTypes, NarrowFormatsRoundTripEveryPattern) {
  for (const DType dtype :
       {DType::F8E4M3, DType::F8E4M3FNUZ, DType::F8E5M2, DType::F8E5M2FNUZ, DType::F4E2M1}) {
    for (uint32_t bits = 0; bits < (dtype == DType::F4E2M1 ? 16U : 256U); ++bits) {
      const float value = narrow_to_f32(static_cast<uint8_t>(bits), dtype);
      if (!std::isnan(value)) {
        ASSERT_EQ(f32_to_narrow(value, dtype, false), bits) << to_string(dtype) << " " << bits;
      }
    }
  }
}

TEST(FloatTypes, TiesGoToEvenAndOverflowSaturates) {
  EXPECT_EQ(narrow_to_f32(f32_to_narrow(1.0625F, DType::F8E4M3), DType::F8E4M3), 1.0F);
  EXPECT_EQ(narrow_to_f32(f32_to_narrow(1.1875F, DType::F8E4M3), DType::F8E4M3), 1.25F);
  EXPECT_EQ(narrow_to_f32(f32_to_narrow(1e6F, DType::F8E4M3), DType::F8E4M3), 448.0F);
  EXPECT_TRUE(std::isnan(narrow_to_f32(f32_to_narrow(1e6F, DType::F8E4M3, false), DType::F8E4M3)));
  EXPECT_TRUE(std::isinf(narrow_to_f32(f32_to_narrow(1e6F, DType::F8E5M2, false), DType::F8E5M2)));
}

}  // namespace
}  // namespace quern
