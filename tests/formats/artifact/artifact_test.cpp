#include "formats/artifact/artifact.h"

#include <gtest/gtest.h>

#include <cstring>

#include "formats/artifact/header.h"
#include "formats/file/checksum.h"
#include "ir/rewriter.h"
#include "tests/support/expect_error.h"
#include "tests/support/graph_compare.h"
#include "tests/support/paths.h"
#include "tests/support/temp_dir.h"

namespace quern::artifact {
namespace {

using test::read_text;
using test::same_graph;
using test::TempDir;

std::filesystem::path fixture() {
  return test::source_path("tests/formats/artifact/fixtures/version1.quern");
}

Tensor counted(DType dtype, Shape shape) {
  Tensor tensor = Tensor::zeros(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(i % 7));
  return tensor;
}

QuantizedTensor quantized(DType code, bool symmetric, QuantScheme::Granularity granularity) {
  QuantizedTensor tensor;
  tensor.codes = counted(code, {48, 96});
  tensor.scheme = {.code = code, .symmetric = symmetric, .granularity = granularity};
  tensor.scales = counted(DType::F32, {48});
  if (granularity == QuantScheme::Granularity::Group) {
    tensor.scheme.axis = 1;
    tensor.scheme.group_size = 32;
    tensor.scales = counted(DType::F16, {48, 3});
  }
  if (granularity == QuantScheme::Granularity::Tensor) tensor.scales = Tensor::scalar<float>(0.5F);
  if (!symmetric) tensor.zero_points = counted(code, tensor.scales.shape());
  return tensor;
}

// A graph with one of everything that a graph can have.
std::unique_ptr<Graph> everything() {
  auto graph = std::make_unique<Graph>("everything");
  Rewriter rewriter(*graph);
  const Dim odd = Dim::symbol("batch") * Dim(2) + Dim::symbol("past") * Dim::symbol("heads") - Dim(3);
  Value* x = rewriter.add_input("x", {DType::F32, SymShape{Dim::symbol("batch"), odd, Dim::fresh(), 7}});
  rewriter.add_input("unknown", {});
  rewriter.add_input("sequence", {DType::I64, std::nullopt, ValueType::Kind::Sequence});
  Value* condition = rewriter.add_input("optional", {DType::Bool, SymShape{}, ValueType::Kind::Optional});
  for (const DType dtype : {DType::F32, DType::F64, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2,
                            DType::I64, DType::I8, DType::I4, DType::U2, DType::U8, DType::F4E2M1}) {
    rewriter.add_constant(counted(dtype, {5}), "small " + std::string(to_string(dtype)));
    rewriter.add_constant(counted(dtype, {70, 70}), "large " + std::string(to_string(dtype)));
  }
  rewriter.add_constant(Tensor::zeros(DType::F32, {0, 3}), "empty");
  rewriter.add_constant(Tensor::from<bool>({2}, {true, false}), "bool");
  rewriter.add_constant(Tensor::from_strings({2}, {"a", std::string("\xFF\x00", 2)}), "strings");
  for (const bool symmetric : {true, false}) {
    for (const auto granularity : {QuantScheme::Granularity::Tensor, QuantScheme::Granularity::Channel,
                                   QuantScheme::Granularity::Group}) {
      for (const DType code : {DType::I8, DType::U4}) {
        const QuantizedTensor tensor = quantized(code, symmetric, granularity);
        rewriter.add_constant(tensor, "quantized " + to_string(tensor.scheme));
        rewriter.add_constant(pack(tensor), "packed " + to_string(tensor.scheme));
      }
    }
  }
  Value* weight = rewriter.add_constant(pack(counted(DType::BF16, {20, 30})), "packed bf16");
  rewriter.add_constant(pack(counted(DType::F32, {20, 30})), "packed f32");

  auto branch = std::make_shared<Graph>("branch");
  {
    Rewriter inner(*branch);
    Value* own = inner.add_constant(counted(DType::F32, {600}), "large f32");
    Node* node = inner.add_node(
        {.op = "Custom", .domain = "test", .name = "in", .inputs = {x, own}, .outputs = {{"y", {}}}});
    inner.add_output(node->output(), "result");
    inner.add_output(x, "captured");
    inner.commit();
  }
  Node* node = rewriter.add_node(
      {.op = "Everything",
       .domain = "test",
       .opset = 3,
       .name = "a node",
       .inputs = {x, nullptr, condition, weight},
       .attributes = {{"int", int64_t{-5}},
                      {"float", 0.1F},
                      {"string", std::string("\xFE text")},
                      {"ints", std::vector<int64_t>{1, INT64_MIN, INT64_MAX}},
                      {"no ints", std::vector<int64_t>{}},
                      {"floats", std::vector<float>{1.5F, -0.0F}},
                      {"no floats", std::vector<float>{}},
                      {"strings", std::vector<std::string>{"", "b"}},
                      {"tensor", counted(DType::I4, {3, 3})},
                      {"large tensor", counted(DType::F32, {3000})},
                      {"graph", branch},
                      {"type", ValueType{DType::F16, SymShape{odd}}}},
       .outputs = {{"out", {DType::F32, SymShape{Dim::fresh()}}}, OutputSpec::omitted(), {"other", {}}}});
  rewriter.add_output(node->output(0), "result");
  rewriter.add_output(x, "x again");
  rewriter.set_opset("", 17);
  rewriter.set_opset("test", 3);
  rewriter.set_metadata("key", "value");
  rewriter.commit();
  return graph;
}

void write(const std::filesystem::path& path, const Graph& graph) {
  Writer writer(path);
  writer.add_attachment(kTokenizerJson, "{\"model\": {}}");
  writer.add_attachment(kRecipe, "");
  writer.add_source({"model.onnx", 1234, std::string(64, 'a')});
  writer.write_graph(graph);
  writer.finish();
}

Artifact parse_text(const std::string& text, const OpenOptions& options = {}) {
  auto owner = std::make_shared<std::string>(text);
  return Artifact::parse(std::as_bytes(std::span(owner->data(), owner->size())), owner, "t.quern", options);
}

TEST(Artifact, EverythingComesBack) {
  const TempDir dir;
  const auto graph = everything();
  write(dir / "a.quern", *graph);
  const Artifact artifact = Artifact::open(dir / "a.quern", {.verify = true});
  EXPECT_TRUE(same_graph(*graph, artifact.graph()));
  EXPECT_EQ(artifact.attachment_names(), (std::vector<std::string>{kRecipe, kTokenizerJson}));
  EXPECT_EQ(artifact.attachment(kTokenizerJson), "{\"model\": {}}");
  EXPECT_EQ(artifact.attachment(kRecipe), "");
  EXPECT_EQ(artifact.attachment("other"), std::nullopt);
  ASSERT_EQ(artifact.sources().size(), 1U);
  EXPECT_EQ(artifact.sources()[0], (SourceFile{"model.onnx", 1234, std::string(64, 'a')}));
  EXPECT_EQ(artifact.producer().substr(0, 6), "quern ");
  EXPECT_EQ(artifact.version(), 1U);
  EXPECT_TRUE(is_artifact(dir / "a.quern"));
}

TEST(Artifact, TheSameGraphGivesTheSameBytes) {
  const TempDir dir;
  const auto graph = everything();
  write(dir / "a.quern", *graph);
  // Another graph of the same content: its nameless dimensions have other numbers in this process.
  write(dir / "b.quern", *everything());
  EXPECT_TRUE(read_text(dir / "a.quern") == read_text(dir / "b.quern"));
  const Artifact read = Artifact::open(dir / "a.quern");
  write(dir / "c.quern", read.graph());
  EXPECT_TRUE(read_text(dir / "a.quern") == read_text(dir / "c.quern"));
}

TEST(Artifact, LargeConstantsAreAlignedViewsOfTheFile) {
  const TempDir dir;
  Graph graph("g");
  {
    Rewriter rewriter(graph);
    rewriter.add_constant(counted(DType::F32, {100'000}), "large");
    rewriter.add_constant(counted(DType::F32, {1000}), "medium");
    rewriter.add_constant(counted(DType::F32, {10}), "small");
    rewriter.commit();
  }
  write(dir / "a.quern", graph);
  std::unique_ptr<Graph> kept;
  {
    Artifact artifact = Artifact::open(dir / "a.quern");
    for (const auto& section : artifact.sections()) {
      EXPECT_EQ(section.offset % (section.name == "large" ? 4096 : 64), 0U) << section.name;
    }
    kept = artifact.take_graph();
  }
  std::filesystem::remove(dir / "a.quern");
  EXPECT_TRUE(kept->find_value("large")->tensor()->is_view());
  EXPECT_TRUE(kept->find_value("medium")->tensor()->is_view());
  EXPECT_FALSE(kept->find_value("small")->tensor()->is_view());
  EXPECT_EQ(kept->find_value("large")->tensor()->at(99'999), 99'999 % 7);
}

// One constant at a time: the filter is asked for the next when the last is written and gone.
TEST(Artifact, AFilterReplacesConstantsOnTheWay) {
  const TempDir dir;
  const auto graph = everything();
  Writer writer(dir / "a.quern");
  std::weak_ptr<int> last;
  writer.write_graph(*graph, [&](const Value& value) -> Constant {
    EXPECT_TRUE(last.expired());
    const Tensor* tensor = value.tensor();
    if (tensor == nullptr || tensor->dtype() != DType::F32 || tensor->rank() != 2 || tensor->size() == 0) {
      return *value.constant();
    }
    auto owner = std::make_shared<int>(0);
    last = owner;
    return Tensor::view(DType::F32, tensor->shape(), owner, tensor->bytes(), tensor->byte_size())
        .cast(DType::F16);
  });
  writer.finish();
  const Artifact artifact = Artifact::open(dir / "a.quern");
  EXPECT_EQ(artifact.graph().find_value("large f32")->tensor()->dtype(), DType::F16);
  EXPECT_EQ(artifact.graph().find_value("large f64")->tensor()->dtype(), DType::F64);
}

TEST(Artifact, WithoutFinishThereIsNoFile) {
  const TempDir dir;
  const auto graph = everything();
  {
    Writer writer(dir / "a.quern");
    writer.write_graph(*graph);
  }
  EXPECT_TRUE(dir.names().empty());
  Writer writer(dir / "a.quern");
  EXPECT_QUERN_ERROR(writer.write_graph(*graph, [](const Value&) -> Constant { return Tensor(); }),
                     ErrorCode::InvalidArgument, "a.quern", "not defined", "small f32");
}

TEST(Artifact, AnAttachmentCanBeSetLater) {
  const TempDir dir;
  const auto graph = everything();
  write(dir / "a.quern", *graph);
  set_attachment(dir / "a.quern", kValidation, "{\"top1\": 1}");
  set_attachment(dir / "a.quern", kRecipe, "new");
  const Artifact artifact = Artifact::open(dir / "a.quern", {.verify = true});
  EXPECT_TRUE(same_graph(*graph, artifact.graph()));
  EXPECT_EQ(artifact.attachment(kValidation), "{\"top1\": 1}");
  EXPECT_EQ(artifact.attachment(kRecipe), "new");
  EXPECT_EQ(artifact.attachment(kTokenizerJson), "{\"model\": {}}");
  EXPECT_EQ(artifact.sources().size(), 1U);
  // As if it had been there from the start.
  std::string sizes;
  for (const auto& section : artifact.sections()) sizes += section.name + " ";
  EXPECT_EQ(sizes.find("recipe.json"), sizes.rfind("recipe.json"));
}

// Written by make_fixtures.py from SPEC.md, without quern.
TEST(Artifact, AFileOfVersion1ByAnotherWriterIsRead) {
  const Artifact artifact = Artifact::open(fixture(), {.verify = true});
  const Graph& graph = artifact.graph();
  EXPECT_EQ(graph.name(), "example");
  const SymShape& shape = graph.inputs()[0]->shape();
  EXPECT_EQ(shape[0], Dim::symbol("batch"));
  EXPECT_EQ(shape[1], Dim::symbol("s") * Dim(2) + Dim(1));
  EXPECT_TRUE(shape[2].as_symbol()->starts_with('?'));
  EXPECT_EQ(graph.find_value("w")->tensor()->at(299), 299.0);
  EXPECT_EQ(graph.find_value("scale")->tensor()->at(0), 0.5);
  EXPECT_EQ(dequantize(*graph.find_value("q")->quantized()).to_floats(), (std::vector<float>{1, 2, -2, -16}));
  ASSERT_EQ(graph.nodes().size(), 3U);
  const Node* choice = graph.nodes()[1];
  EXPECT_EQ(choice->opset(), 16);
  EXPECT_EQ(choice->subgraph("else_branch")->nodes()[0]->input(0), graph.find_value("scale"));
  EXPECT_EQ(graph.nodes()[2]->input(1), choice->output());
  EXPECT_EQ(graph.outputs()[0].name, "y");
  EXPECT_EQ(graph.metadata().at("author"), "nobody");
  EXPECT_EQ(artifact.attachment("recipe.json"), "{}");
  EXPECT_EQ(artifact.producer(), "make_fixtures.py");
}

std::string with_version(std::string file, uint32_t version) {
  std::memcpy(file.data() + 8, &version, 4);
  const uint32_t crc = crc32c(std::as_bytes(std::span(file)).first(60));
  std::memcpy(file.data() + 60, &crc, 4);
  return file;
}

TEST(Artifact, ANewerVersionIsRefused) {
  const std::string file = read_text(fixture());
  EXPECT_QUERN_ERROR(parse_text(with_version(file, 2)), ErrorCode::Unsupported, "t.quern", "format version 2",
                     "newer quern");
  EXPECT_QUERN_ERROR(parse_text(with_version(file, 0)), ErrorCode::Corrupt);
}

TEST(Artifact, OtherFilesAreNoArtifacts) {
  const TempDir dir;
  EXPECT_QUERN_ERROR(parse_text(""), ErrorCode::Corrupt, "t.quern", "empty");
  EXPECT_QUERN_ERROR(parse_text(std::string(1000, 'x')), ErrorCode::Corrupt, "not a quern artifact");
  EXPECT_QUERN_ERROR(Artifact::open(dir / "absent"), ErrorCode::Io, "absent");
  test::write_text(dir / "short", "\x89QUE");
  EXPECT_FALSE(is_artifact(dir / "short"));
  EXPECT_FALSE(is_artifact(dir / "absent"));
  EXPECT_FALSE(is_artifact(dir.path()));
}

TEST(Artifact, EveryTruncationIsNoticed) {
  const std::string whole = read_text(fixture());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_QUERN_ERROR(parse_text(whole.substr(0, size)), ErrorCode::Corrupt, "t.quern");
  }
  EXPECT_QUERN_ERROR(parse_text(whole + "x"), ErrorCode::Corrupt, "t.quern");
}

// Every bit of header, manifest and sections is under a checksum; only the zeros between them are not.
TEST(Artifact, EveryFlippedBitIsNoticed) {
  const std::string whole = read_text(fixture());
  const Artifact good = parse_text(whole);
  std::vector<bool> covered(whole.size(), false);
  for (const auto& section : good.sections()) {
    std::fill_n(covered.begin() + static_cast<ptrdiff_t>(section.offset), section.size, true);
  }
  const Header header = decode_header(std::as_bytes(std::span(whole)));
  std::fill_n(covered.begin(), kHeaderSize, true);
  std::fill_n(covered.begin() + static_cast<ptrdiff_t>(header.manifest_offset), header.manifest_size, true);
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    if (!covered[bit / 8]) continue;
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    try {
      parse_text(damaged, {.verify = true});
      ADD_FAILURE() << "bit " << bit << " is not protected";
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::Corrupt || error.code() == ErrorCode::Unsupported)
          << error.what();
    }
  }
}

TEST(Artifact, DamageInAWeightIsFoundByVerify) {
  std::string file = read_text(fixture());
  const Artifact good = parse_text(file);
  file[good.sections()[0].offset + 5] ^= 1;
  const Artifact damaged = parse_text(file);
  EXPECT_QUERN_ERROR(damaged.verify(), ErrorCode::Corrupt, "t.quern", "'w'", "checksum");
}

// `file` with `from`, which must occur once in its manifest, replaced by as many bytes; checksums made right.
std::string with_bytes(std::string file, const std::string& from, const std::string& to) {
  Header header = decode_header(std::as_bytes(std::span(file)));
  const size_t at = file.find(from, header.manifest_offset);
  EXPECT_NE(at, std::string::npos);
  EXPECT_EQ(file.find(from, at + 1), std::string::npos);
  file.replace(at, from.size(), to);
  header.manifest_crc = crc32c(std::as_bytes(std::span(file)).subspan(header.manifest_offset));
  const auto head = encode(header);
  std::memcpy(file.data(), head.data(), head.size());
  return file;
}

// Enumerators that only a newer quern knows must not read as the first one, or as nothing.
TEST(Artifact, NumbersOfANewerQuernAreRefusedByName) {
  const TempDir dir;
  Graph graph("numbers");
  Rewriter rewriter(graph);
  Value* x = rewriter.add_input("x", {DType::F32, SymShape{5, 78}});
  Value* w = rewriter.add_constant(counted(DType::F32, {5, 77}), "w");
  rewriter.add_constant(quantized(DType::I8, true, QuantScheme::Granularity::Group), "q");
  rewriter.add_output(w, "w_out");
  rewriter.add_output(x, "y");
  rewriter.commit();
  write(dir / "a.quern", graph);
  const std::string file = read_text(dir / "a.quern");
  using namespace std::string_literals;
  // Of w: element_type 1, dims 5 and 77.
  EXPECT_QUERN_ERROR(parse_text(with_bytes(file, "\x08\x01\x12\x02\x05\x4D"s, "\x08\x63\x12\x02\x05\x4D"s)),
                     ErrorCode::Unsupported, "'w'", "element type number 99", "newer");
  // Of x: element_type 1, a shape of two dimensions.
  EXPECT_QUERN_ERROR(parse_text(with_bytes(file, "\x08\x01\x12\x09"s, "\x08\x63\x12\x09"s)),
                     ErrorCode::Unsupported, "'x'", "element type number 99", "newer");
  // Of q: code 14, symmetric, granularity 2.
  EXPECT_QUERN_ERROR(parse_text(with_bytes(file, "\x08\x0E\x10\x01\x18\x02"s, "\x08\x0E\x10\x01\x18\x63"s)),
                     ErrorCode::Unsupported, "'q'", "granularity number 99", "newer");
  EXPECT_QUERN_ERROR(parse_text(with_bytes(file, "\x08\x0E\x10\x01\x18\x02"s, "\x08\x63\x10\x01\x18\x02"s)),
                     ErrorCode::Unsupported, "'q'", "element type number 99", "newer");
}

// The manifest with one byte changed and its checksums made right again: what the checksums would have caught
// must still be no crash.
TEST(Artifact, AManifestOfNonsenseIsAnErrorOrAGraph) {
  const std::string whole = read_text(fixture());
  const Header header = decode_header(std::as_bytes(std::span(whole)));
  for (size_t i = 0; i < header.manifest_size; ++i) {
    for (const int change : {1, 0x80, 0xFF}) {
      std::string damaged = whole;
      char& byte = damaged[header.manifest_offset + i];
      byte = static_cast<char>(byte ^ change);
      Header fixed = header;
      fixed.manifest_crc = crc32c(std::as_bytes(std::span(damaged)).subspan(header.manifest_offset));
      const auto head = encode(fixed);
      std::memcpy(damaged.data(), head.data(), head.size());
      try {
        parse_text(damaged);
      } catch (const Error& error) {
        EXPECT_NE(error.code(), ErrorCode::Internal) << i << ": " << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace quern::artifact
