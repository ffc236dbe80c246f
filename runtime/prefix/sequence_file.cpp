#include "runtime/prefix/sequence_file.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "formats/file/atomic_file.h"
#include "formats/file/checksum.h"
#include "formats/file/mapped_file.h"
#include "ir/error.h"
#include "runtime/cpu/isa.h"
#include "runtime/decoder/sequence_state.h"

namespace quern::runtime {
namespace {

constexpr std::string_view kMagic = "QUERNKV1";
constexpr uint32_t kVersion = 1;
constexpr uint64_t kPage = 4096;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t description_crc;
  uint64_t description_size;
  uint64_t blocks_offset;
  uint64_t blocks_size;
  uint32_t blocks_crc;
  uint32_t header_crc;
  uint8_t zeros[16];
};
static_assert(sizeof(Header) == 64 && std::is_trivially_copyable_v<Header>);

uint32_t crc_of(const Header& header) {
  return crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_crc)));
}

uint64_t blocks_for(uint64_t tokens) {
  return (tokens + KvCache::kBlock - 1) / KvCache::kBlock;
}

// Bytes of a block in the file: as in memory, where blocks are aligned.
uint64_t block_size(const CacheStore& store, size_t layer) {
  return static_cast<uint64_t>(store.pool.bytes(store.layers[layer].kind));
}

class Writer {
 public:
  template <class T>
  void number(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void string(std::string_view value) {
    number(static_cast<uint32_t>(value.size()));
    text_ += value;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const MappedFile& file) : left_(bytes), file_(file) {}

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string string() {
    const auto bytes = take(number<uint32_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  size_t left() const { return left_.size(); }
  [[noreturn]] void corrupt(std::string_view what) const {
    throw_error(ErrorCode::Corrupt, file_.name(), " is no sound file of keys and values: ", what);
  }

 private:
  std::span<const std::byte> take(size_t count) {
    if (count > left_.size()) corrupt("its description ends too early");
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  std::span<const std::byte> left_;
  const MappedFile& file_;
};

// What the numbers depend on besides the tokens.
std::string conditions(std::string_view model) {
  Writer out;
  out.string(model);
  out.string(cpu::to_string(cpu::active_isa()));
  return out.text();
}

std::string description(const SequenceState& state, std::string_view model) {
  const CacheStore& store = *state.store;
  Writer out;
  out.number(static_cast<uint8_t>(store.shapes.empty() ? DType::F32 : store.shapes.front().cache_dtype));
  out.number(static_cast<uint8_t>(state.long_rotary));
  out.number(static_cast<uint32_t>(store.shapes.size()));
  for (const cpu::AttentionShape& shape : store.shapes) {
    for (const int64_t fact : {shape.kv_heads, shape.head_size, shape.value_size, shape.window})
      out.number(fact);
  }
  out.number(static_cast<uint64_t>(state.tokens.size()));
  for (const int64_t token : state.tokens) out.number(token);
  for (size_t layer = 0; layer < store.shapes.size(); ++layer) {
    for (uint64_t b = 0; b < blocks_for(state.tokens.size()); ++b) {
      const std::byte* block = state.cache.block(static_cast<int>(layer), static_cast<int64_t>(b));
      out.number(static_cast<uint8_t>(block != nullptr));
    }
  }
  return conditions(model) + out.text();
}

// The blocks that are there, in their order, the last one of a layer without what lies behind the last token.
template <class Body>
void for_each_block(const SequenceState& state, Body&& body) {
  const CacheStore& store = *state.store;
  const auto size = static_cast<int64_t>(state.tokens.size());
  const auto count = static_cast<int64_t>(blocks_for(state.tokens.size()));
  for (size_t layer = 0; layer < store.shapes.size(); ++layer) {
    const cpu::AttentionShape& shape = store.shapes[layer];
    std::vector<std::byte> copy(block_size(store, layer));
    for (int64_t b = 0; b < count; ++b) {
      const std::byte* block = state.cache.block(static_cast<int>(layer), b);
      if (block == nullptr) continue;
      std::fill(copy.begin(), copy.end(), std::byte{0});
      const int64_t slots = std::min(KvCache::kBlock, size - b * KvCache::kBlock);
      for (int64_t head = 0; head < shape.kv_heads; ++head)
        store.kernels->copy_slots(shape, head, block, 0, copy.data(), 0, slots);
      body(copy);
    }
  }
}

Header checked_header(const MappedFile& file) {
  const auto fail = [&](std::string_view what) {
    throw_error(ErrorCode::Corrupt, file.name(), " is no sound file of keys and values: ", what);
  };
  Header header;
  std::memcpy(&header, file.slice(0, sizeof(header), "the header").data(), sizeof(header));
  if (std::string_view(header.magic, sizeof(header.magic)) != kMagic) fail("it does not begin like one");
  if (header.header_crc != crc_of(header)) fail("its header is damaged");
  if (header.version != kVersion) {
    throw_error(ErrorCode::Unsupported, file.name(), " has version ", header.version,
                " of the format; this quern reads version ", kVersion);
  }
  const auto text = file.slice(sizeof(header), header.description_size, "the description");
  if (crc32c(text) != header.description_crc) fail("its description is damaged");
  const auto blocks = file.slice(header.blocks_offset, header.blocks_size, "the blocks");
  if (header.blocks_offset % kPage != 0) fail("its blocks are not aligned");
  if (crc32c(blocks) != header.blocks_crc) fail("its keys and values are damaged");
  return header;
}

void check_conditions(Reader& in, const MappedFile& file, std::string_view model) {
  const auto other = [&](const std::string& what) {
    throw_error(ErrorCode::BadData, file.name(), " holds keys and values of ", what, "; build it anew");
  };
  if (in.string() != model) other("another model");
  const std::string isa = in.string(), mine(cpu::to_string(cpu::active_isa()));
  if (isa != mine) other(concat("the instruction set ", isa, ", this machine has ", mine));
}

void check_layers(Reader& in, const CacheStore& store) {
  if (in.number<uint32_t>() != store.shapes.size()) in.corrupt("it has another number of layers");
  for (const cpu::AttentionShape& shape : store.shapes) {
    for (const int64_t fact : {shape.kv_heads, shape.head_size, shape.value_size, shape.window}) {
      if (in.number<int64_t>() != fact) in.corrupt("its layers have another shape");
    }
  }
}

std::vector<int64_t> read_tokens(Reader& in, const MappedFile& file, const Session& session) {
  const auto count = in.number<uint64_t>();
  if (count > in.left() / sizeof(int64_t)) in.corrupt("it counts more tokens than it has");
  const int64_t context = session.options().context;
  if (context > 0 && static_cast<int64_t>(count) > context) {
    throw_error(ErrorCode::BadData, file.name(), " holds ", count, " tokens, more than the context of ",
                context);
  }
  const int64_t vocabulary = session.program().traits().vocabulary;
  std::vector<int64_t> tokens(count);
  for (int64_t& token : tokens) {
    token = in.number<int64_t>();
    if (token < 0 || token >= vocabulary) in.corrupt("it has tokens outside the vocabulary");
  }
  return tokens;
}

// Where the blocks of each layer lie, null where they were given up.
std::vector<std::vector<const std::byte*>> find_blocks(Reader& in, std::span<const std::byte> bytes,
                                                       uint64_t tokens, const CacheStore& store) {
  std::vector<std::vector<const std::byte*>> found(store.shapes.size());
  for (size_t layer = 0; layer < found.size(); ++layer) {
    const uint64_t size = block_size(store, layer);
    for (uint64_t b = 0; b < blocks_for(tokens); ++b) {
      const bool there = in.number<uint8_t>() != 0;
      if (there ? size > bytes.size() : store.layers[layer].window == 0) in.corrupt("blocks are missing");
      found[layer].push_back(there ? bytes.data() : nullptr);
      if (there) bytes = bytes.subspan(size);
    }
  }
  if (!bytes.empty() || in.left() != 0) in.corrupt("it is longer than it says");
  return found;
}

}  // namespace

void save_sequence(const Sequence& sequence, const std::filesystem::path& path, std::string_view model) {
  if (!sequence || sequence.has_undecided_tree()) {
    throw_error(ErrorCode::InvalidArgument, "only a sequence without an undecided tree can be saved");
  }
  const SequenceState& state = SequenceAccess::state(sequence);
  if (state.moved) {
    throw_error(
        ErrorCode::InvalidArgument,
        "a sequence that lost tokens of its middle can't be saved: its keys and values are not those of "
        "the tokens that remain");
  }
  const std::string text = description(state, model);
  Header header = {};
  kMagic.copy(header.magic, sizeof(header.magic));
  header.version = kVersion;
  header.description_size = text.size();
  header.description_crc = crc32c(std::as_bytes(std::span(text)));
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(&header, 1)));
  file.write(text);
  file.align(kPage);
  header.blocks_offset = file.size();
  for_each_block(state, [&](const std::vector<std::byte>& block) {
    header.blocks_crc = crc32c(block, header.blocks_crc);
    file.write(block);
  });
  header.blocks_size = file.size() - header.blocks_offset;
  header.header_crc = crc_of(header);
  file.write_at(0, std::as_bytes(std::span(&header, 1)));
  file.commit();
}

Sequence load_sequence(Session& session, const std::filesystem::path& path, std::string_view model) {
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  const Header header = checked_header(*file);
  Reader in(file->bytes().subspan(sizeof(header), header.description_size), *file);
  Sequence sequence = session.new_sequence();
  SequenceState& state = SequenceAccess::state(sequence);
  CacheStore& store = *state.store;
  check_conditions(in, *file, model);
  const DType mine = store.shapes.empty() ? DType::F32 : store.shapes.front().cache_dtype;
  if (in.number<uint8_t>() != static_cast<uint8_t>(mine)) {
    throw_error(ErrorCode::BadData, file->name(), " holds keys and values of another type than ",
                to_string(mine), ", as which they are kept here");
  }
  const bool long_rotary = in.number<uint8_t>() != 0;
  check_layers(in, store);
  std::vector<int64_t> tokens = read_tokens(in, *file, session);
  const auto found =
      find_blocks(in, file->bytes().subspan(header.blocks_offset, header.blocks_size), tokens.size(), store);
  std::vector<std::vector<CacheBlock*>> blocks(found.size());
  for (size_t layer = 0; layer < found.size(); ++layer) {
    for (const std::byte* at : found[layer])
      blocks[layer].push_back(at == nullptr ? nullptr : store.pool.adopt(store.layers[layer].kind, at, file));
  }
  const auto size = static_cast<int64_t>(tokens.size());
  state.cache.adopt(size, blocks);
  state.tokens = std::move(tokens);
  state.long_rotary = long_rotary;
  if (!state.cache.can_truncate(size)) in.corrupt("blocks of the window are missing");
  return sequence;
}

}  // namespace quern::runtime
