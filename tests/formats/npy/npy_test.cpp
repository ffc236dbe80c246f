#include "formats/npy/npy.h"

#include <gtest/gtest.h>

#include "formats/file/mapped_file.h"
#include "ir/float_types.h"
#include "tests/support/expect_error.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::npy {
namespace {

using test::TempDir;

std::filesystem::path fixture(const std::string& name) {
  return test::source_path("tests/formats/npy/fixtures/" + name);
}

TEST(Npy, ReadsEveryNumericTypeThatNumpyWrote) {
  const std::vector<std::pair<std::string, DType>> types = {
      {"i1", DType::I8},  {"i2", DType::I16}, {"i4", DType::I32}, {"i8", DType::I64},
      {"u1", DType::U8},  {"u2", DType::U16}, {"u4", DType::U32}, {"u8", DType::U64},
      {"f2", DType::F16}, {"f4", DType::F32}, {"f8", DType::F64}};
  for (const auto& [name, dtype] : types) {
    const Tensor tensor = read(fixture(name + ".npy"));
    EXPECT_EQ(tensor.dtype(), dtype) << name;
    EXPECT_EQ(tensor.shape(), (Shape{2, 3})) << name;
    EXPECT_EQ(tensor.to_floats(), (std::vector<float>{0, 1, 2, 3, 4, 5})) << name;
    EXPECT_TRUE(tensor.is_view()) << name;
  }
}

TEST(Npy, ReadsBoolBigEndianFortranScalarAndEmpty) {
  EXPECT_EQ(read(fixture("bool.npy")).dtype(), DType::Bool);
  EXPECT_EQ(read(fixture("bool.npy")).to_ints(), (std::vector<int64_t>{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(read(fixture("big_endian.npy")).to_ints(), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  const Tensor fortran = read(fixture("fortran.npy"));
  EXPECT_EQ(fortran.shape(), (Shape{2, 3, 4}));
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(fortran.at(i), static_cast<double>(i));
  EXPECT_EQ(read(fixture("scalar.npy")).shape(), Shape{});
  EXPECT_EQ(read(fixture("scalar.npy")).at(0), 1.5);
  EXPECT_EQ(read(fixture("empty.npy")).shape(), (Shape{0, 3}));
  EXPECT_EQ(read(fixture("vector.npy")).shape(), (Shape{5}));
}

TEST(Npy, ReadsText) {
  EXPECT_EQ(read(fixture("text.npy")).strings(), (std::vector<std::string>{"a", "žluť", "", "😀b"}));
  EXPECT_EQ(read(fixture("bytes.npy")).strings(), (std::vector<std::string>{"ab", "", "xyz"}));
}

TEST(Npy, OtherTypesAreRefusedByName) {
  EXPECT_QUERN_ERROR(read(fixture("complex.npy")), ErrorCode::Unsupported, "complex.npy", "c8");
  EXPECT_QUERN_ERROR(read(fixture("record.npy")), ErrorCode::Unsupported, "record.npy", "records");
  EXPECT_QUERN_ERROR(read(fixture("object.npy")), ErrorCode::Unsupported, "object.npy", "|O");
}

// What NumPy wrote is written byte for byte alike.
TEST(Npy, WritesTheBytesThatNumpyWrites) {
  const TempDir dir;
  for (const char* name : {"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "bool", "scalar",
                           "empty", "vector", "text"}) {
    const auto path = fixture(std::string(name) + ".npy");
    write(dir / "out.npy", read(path));
    EXPECT_TRUE(test::read_text(dir / "out.npy") == test::read_text(path)) << name;
  }
}

TEST(Npy, NarrowTypesBecomeWhatNumpyHas) {
  const TempDir dir;
  Tensor bf16 = Tensor::zeros(DType::BF16, {2});
  bf16.set(0, 1.0);
  write(dir / "a.npy", bf16);
  EXPECT_EQ(read(dir / "a.npy").dtype(), DType::U16);
  EXPECT_EQ(read(dir / "a.npy").int_at(0), 0x3F80);
  Tensor i4 = Tensor::zeros(DType::I4, {3});
  i4.set_int(0, -8);
  i4.set_int(2, 7);
  write(dir / "b.npy", i4);
  EXPECT_EQ(read(dir / "b.npy").dtype(), DType::I8);
  EXPECT_EQ(read(dir / "b.npy").to_ints(), (std::vector<int64_t>{-8, 0, 7}));
  Tensor fp8 = Tensor::zeros(DType::F8E4M3, {1});
  fp8.set(0, 1.0);
  write(dir / "c.npy", fp8);
  EXPECT_EQ(read(dir / "c.npy").int_at(0), 0x38);
  Tensor fp4 = Tensor::zeros(DType::F4E2M1, {3});
  fp4.set(1, 6.0);
  write(dir / "d.npy", fp4);
  EXPECT_EQ(read(dir / "d.npy").to_ints(), (std::vector<int64_t>{0, 7, 0}));
}

// A file with the given dictionary, as version 1.
std::string npy_file(std::string dictionary, const std::string& data) {
  dictionary += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(dictionary.size() & 0xFF);
  file += static_cast<char>(dictionary.size() >> 8);
  return file + dictionary + data;
}

Tensor parse_text(const std::string& text) {
  auto owner = std::make_shared<std::string>(text);
  return parse(std::as_bytes(std::span(owner->data(), owner->size())), owner, "t.npy");
}

TEST(Npy, Bfloat16OfMlDtypes) {
  const Tensor tensor =
      parse_text(npy_file("{'descr': '<V2', 'fortran_order': False, 'shape': (1,), }", "\x80\x3F"));
  EXPECT_EQ(tensor.dtype(), DType::BF16);
  EXPECT_EQ(tensor.at(0), 1.0);
}

TEST(Npy, MalformedFilesAreErrors) {
  const auto corrupt = [](const std::string& text, const std::string& part) {
    EXPECT_QUERN_ERROR(parse_text(text), ErrorCode::Corrupt, "t.npy", part);
  };
  corrupt("", "not a .npy file");
  corrupt("PK\x03\x04 something else", "not a .npy file");
  corrupt(std::string("\x93NUMPY\x01\x00\xFF\xFF{", 11), "truncated");
  corrupt(npy_file("", ""), "header");
  corrupt(npy_file("{'descr': '<f4', 'shape': (1,)}", "aaaa"), "fortran_order");
  corrupt(npy_file("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}", "aaaa"), "once");
  corrupt(npy_file("{'descr': '<f4', 'fortran_order': maybe, 'shape': ()}", "aaaa"), "True or False");
  corrupt(npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "aaaa"), "a dimension");
  corrupt(npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "aaaa"),
          "63 bits");
  corrupt(npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "aaaa"), "truncated");
  corrupt(npy_file("{'descr': '<U1000000', 'fortran_order': False, 'shape': (9000000000000,)}", "aaaa"),
          "truncated");
  corrupt(npy_file("{'descr': '|b1', 'fortran_order': False, 'shape': (1,)}", "\x02"), "bool element 0 is 2");
  corrupt(npy_file("{'descr': '|b1', 'fortran_order': True, 'shape': (1,2)}", "\x01\x02"),
          "bool element 1 is 2");
  corrupt(npy_file("{'descr': '<U1', 'fortran_order': False, 'shape': (1,)}", "\xFF\xFF\xFF\x7F"), "Unicode");
  EXPECT_QUERN_ERROR(
      parse_text(
          npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 4000000000)}", "aaaa")),
      ErrorCode::InvalidModel, "too many elements");
  EXPECT_QUERN_ERROR(
      parse_text(npy_file("{'descr': '<U0', 'fortran_order': False, 'shape': (9999999999,)}", "")),
      ErrorCode::Unsupported);
  EXPECT_QUERN_ERROR(parse_text(std::string("\x93NUMPY\x09\x00\x01\x00{", 11)), ErrorCode::Unsupported,
                     "version 9");
}

TEST(Npy, EveryTruncationIsAnError) {
  const std::string whole = test::read_text(fixture("f4.npy"));
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_QUERN_ERROR(parse_text(whole.substr(0, size)), ErrorCode::Corrupt, "t.npy");
  }
}

}  // namespace
}  // namespace quern::npy
