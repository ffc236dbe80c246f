// Byte-pair encoding (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909), as Hugging Face `tokenizers`
// does it.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/tokenizer/model.h"

namespace quern::tokenizer {

// Which pair of neighbouring tokens merges into what, and how early.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNoId;  // lower ranks merge first
    uint32_t id = kNoId;    // of the merged token
  };
  explicit MergeTable(size_t merges);
  // A pair that is there already takes the new rank.
  void add(uint32_t left, uint32_t right, Merge merge);
  // nullptr if the pair doesn't merge.
  const Merge* find(uint32_t left, uint32_t right) const {
    const uint64_t pair = uint64_t{left} << 32 | right;
    for (size_t at = slot(pair);; at = (at + 1) & mask_) {
      if (slots_[at].pair == pair) return &slots_[at].merge;
      if (slots_[at].pair == kEmpty) return nullptr;
    }
  }
  // visit(id) for every token that something merges into.
  template <class Visit>
  void for_each_merged(Visit&& visit) const {
    for (const Slot& slot : slots_) {
      if (slot.pair != kEmpty) visit(slot.merge.id);
    }
  }

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t pair = kEmpty;
    Merge merge;
  };
  size_t slot(uint64_t pair) const { return pair * 0x9E3779B97F4A7C15U >> shift_; }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  int shift_ = 0;
};

// For vocabularies that come without merges: every pair of tokens whose texts make up a third one merges into
// it, with the rank `rank_of(id)` of the merged token.
MergeTable all_merges(const Vocabulary& vocabulary, const std::function<uint32_t(uint32_t)>& rank_of);

struct BpeOptions {
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix;  // of every character but a piece's first
  std::string end_of_word_suffix;         // of a piece's last character
  bool fuse_unk = false;                  // neighbouring unknown characters are one unknown token
  bool byte_fallback = false;             // unknown characters become <0xNN> tokens
  bool ignore_merges = false;             // a piece that is a token needs no merges
};

class Bpe : public Model {
 public:
  // The merges in order of rank. Throws Error{InvalidModel} if one names a token that isn't in the
  // vocabulary.
  Bpe(Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
      BpeOptions options);

  Bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options);

  std::unique_ptr<ModelScratch> make_scratch() const override;
  void encode(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const override;
  // Whether encode_bytes() may be used: not where characters are decorated by their place in the piece.
  bool reads_bytes() const {
    return options_.continuing_subword_prefix.empty() && options_.end_of_word_suffix.empty();
  }
  // As encode() of the piece's bytes written in the byte-level alphabet, without writing them out for a piece
  // that was seen lately. `piece` may be any bytes.
  void encode_bytes(std::string_view piece, ModelScratch& scratch, std::vector<int64_t>& ids) const;
  const Vocabulary& vocabulary() const override { return vocabulary_; }

 private:
  struct Scratch;
  void prepare();
  void encode_part(std::string_view piece, Scratch& scratch, std::vector<int64_t>& ids) const;
  void encode_afresh(std::string_view piece, Scratch& scratch, std::vector<int64_t>& ids) const;
  void start_symbols(std::string_view piece, Scratch& scratch) const;
  bool add_byte_tokens(std::string_view character, Scratch& scratch) const;
  uint32_t id_of_character(std::string_view character) const;
  void merge_symbols(Scratch& scratch) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  MergeTable merges_;
  uint32_t unk_id_ = kNoId;
  // Set where no merge joins a word to the space mark behind it, so that what begins with the mark can be
  // encoded by itself. Tokenizers without a pre-tokenizer have whole texts as one piece.
  bool splits_at_marks_ = false;
  std::array<uint32_t, 256> byte_ids_;      // of <0xNN>
  std::array<uint32_t, 512> low_char_ids_;  // of the first code points, which hold the byte-level alphabet
};

}  // namespace quern::tokenizer
