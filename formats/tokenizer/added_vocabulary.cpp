#include "formats/tokenizer/added_vocabulary.h"

#include <algorithm>

#include "formats/tokenizer/unicode_data.h"
#include "formats/tokenizer/utf8.h"
#include "ir/error.h"

namespace quern::tokenizer {
namespace {

bool is_word_character(char32_t c) {
  return has_property(c, kWordCharacter);
}

size_t before_spaces(std::string_view text, size_t end) {
  while (end > 0) {
    const char32_t c = last_code_point(text.substr(0, end));
    if (!is_white_space(c)) break;
    do --end;
    while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  }
  return end;
}

size_t behind_spaces(std::string_view text, size_t begin) {
  while (begin < text.size() && is_white_space(code_point_at(text.data() + begin))) {
    begin += utf8_length(text[begin]);
  }
  return begin;
}

}  // namespace

void StringMatcher::add(std::string_view string, uint32_t value) {
  if (string.empty()) return;
  starts_[static_cast<unsigned char>(string.front())] = true;
  size_t at = 0;
  for (const char byte : string) {
    const Node* next = child(nodes_[at], byte);
    if (next != nullptr) {
      at = static_cast<size_t>(next - nodes_.data());
      continue;
    }
    nodes_[at].children.emplace_back(byte, static_cast<uint32_t>(nodes_.size()));
    at = nodes_.size();
    nodes_.emplace_back();
  }
  nodes_[at].value = value;
}

const StringMatcher::Node* StringMatcher::child(const Node& node, char byte) const {
  for (const auto& [label, index] : node.children) {
    if (label == byte) return &nodes_[index];
  }
  return nullptr;
}

size_t StringMatcher::longest_at(std::string_view text, size_t at) const {
  if (at >= text.size() || !starts_[static_cast<unsigned char>(text[at])]) return 0;
  size_t longest = 0;
  const Node* node = &nodes_.front();
  for (size_t end = at; end < text.size(); ++end) {
    node = child(*node, text[end]);
    if (node == nullptr) break;
    if (node->value != kNoId) longest = end + 1 - at;
  }
  return longest;
}

std::optional<StringMatcher::Match> StringMatcher::find(std::string_view text, size_t from) const {
  if (empty()) return std::nullopt;
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    std::optional<Match> longest;
    const Node* node = &nodes_.front();
    for (size_t at = begin; at < text.size(); ++at) {
      node = child(*node, text[at]);
      if (node == nullptr) break;
      if (node->value != kNoId) longest = Match{begin, at + 1, node->value};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

void AddedVocabulary::add(std::vector<AddedToken> tokens, const Vocabulary& model,
                          const Normalizer* normalizer, AddOptions options) {
  auto next_id = static_cast<int64_t>(model.size());
  for (AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const uint32_t known = model.find(token.content);
    const auto earlier = by_content_.find(token.content);
    if (earlier != by_content_.end()) {
      token.id = tokens_[earlier->second].id;
      tokens_[earlier->second] = token;
      continue;
    }
    if (!options.keep_ids) token.id = known != kNoId ? known : next_id++;
    if (by_id_.contains(token.id)) {
      throw_error(ErrorCode::InvalidModel, "tokenizer: the added tokens '", find(token.id)->content,
                  "' and '", token.content, "' have the same id ", token.id);
    }
    by_content_.emplace(token.content, tokens_.size());
    by_id_.emplace(token.id, tokens_.size());
    id_limit_ = std::max(id_limit_, token.id + 1);
    tokens_.push_back(std::move(token));
  }
  for (const AddedToken& token : tokens_) {
    std::string content = token.content;
    if (token.normalized && normalizer != nullptr) {
      NormalizedText text(content, size_t{1} << 20);
      normalizer->apply(text);
      content = std::move(text.text);
      if (content != token.content) normalized_texts_[token.id] = content;
    }
    if (!options.match_in_text) continue;
    (token.normalized ? normalized_ : raw_).add(content, static_cast<uint32_t>(token.id));
  }
}

const AddedToken* AddedVocabulary::find(int64_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedVocabulary::find(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

bool AddedVocabulary::is_special(int64_t id) const {
  const AddedToken* token = find(id);
  return token != nullptr && token->special;
}

bool AddedVocabulary::is_special(std::string_view content) const {
  const AddedToken* token = find(content);
  return token != nullptr && token->special;
}

std::string_view AddedVocabulary::decoder_text(const AddedToken& token) const {
  const auto normalized = normalized_texts_.find(token.id);
  return normalized == normalized_texts_.end() ? std::string_view(token.content) : normalized->second;
}

std::vector<AddedVocabulary::Section> AddedVocabulary::split(std::string_view text,
                                                             const StringMatcher& matcher) const {
  std::vector<Section> sections;
  size_t done = 0;
  for (size_t from = 0; from < text.size();) {
    const auto match = matcher.find(text, from);
    if (!match) break;
    from = match->end;
    const AddedToken& token = *find(int64_t{match->value});
    size_t begin = match->begin;
    size_t end = match->end;
    if (token.single_word) {
      const bool word_before = begin > 0 && is_word_character(last_code_point(text.substr(0, begin)));
      const bool word_behind = end < text.size() && is_word_character(code_point_at(text.data() + end));
      if (word_before || word_behind) continue;
    }
    if (token.lstrip) begin = std::max(before_spaces(text, begin), done);
    if (token.rstrip) end = behind_spaces(text, end);
    if (done < begin) sections.push_back({done, begin, kNoId});
    // Stripped by the token before it, nothing may be left of a token that is itself space.
    if (begin < end) sections.push_back({begin, end, match->value});
    done = end;
  }
  if (done < text.size()) sections.push_back({done, text.size(), kNoId});
  return sections;
}

}  // namespace quern::tokenizer
