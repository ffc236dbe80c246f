#include "formats/tokenizer/json_reader.h"

namespace quern::tokenizer {
namespace {

constexpr size_t kMaxDepth = 64;

// Builds Json values, but for the tables of the model, which go where they belong as they are read.
class TokenizerSax : public nlohmann::json_sax<Json> {
 public:
  explicit TokenizerSax(TokenizerJson& result) : result_(result) {}

  bool null() override { return value(nullptr); }
  bool boolean(bool v) override { return value(v); }
  bool number_integer(int64_t v) override { return value(v); }
  bool number_unsigned(uint64_t v) override {
    if (table_ == Table::Ids && depth_in_table_ == 1) {
      result_.tables.ids->emplace_back(std::move(token_), v);
      return true;
    }
    return value(v);
  }
  bool number_float(double v, const std::string&) override { return value(v); }
  bool binary(binary_t&) override { return false; }

  bool string(std::string& v) override {
    if (table_ == Table::Merges) {
      if (depth_in_table_ == 1) {
        add_joined_merge(v);
      } else {
        parts_.push_back(std::move(v));
      }
      return true;
    }
    if (table_ == Table::Scores && depth_in_table_ == 2 && !has_token_) {
      token_ = std::move(v);
      has_token_ = true;
      return true;
    }
    return value(std::move(v));
  }

  bool key(std::string& v) override {
    if (table_ == Table::Ids) {
      token_ = std::move(v);
    } else if (table_ == Table::None) {
      keys_.back() = std::move(v);
    } else {
      wrong_entry("an object");
    }
    return true;
  }

  bool start_object(size_t) override {
    if (table_ != Table::None) wrong_entry("an object");
    if (in_model() && keys_.back() == "vocab") {
      table_ = Table::Ids;
      depth_in_table_ = 1;
      result_.tables.ids.emplace();
      return true;
    }
    return open(Json::object());
  }

  bool end_object() override { return end(); }

  bool start_array(size_t) override {
    if (table_ == Table::Ids) wrong_entry("an array");
    if (table_ != Table::None) {
      if (++depth_in_table_ > 2) wrong_entry("an array within an array");
      has_token_ = false;
      has_score_ = false;
      parts_.clear();
      return true;
    }
    if (in_model() && (keys_.back() == "vocab" || keys_.back() == "merges")) {
      table_ = keys_.back() == "vocab" ? Table::Scores : Table::Merges;
      depth_in_table_ = 1;
      if (table_ == Table::Scores) {
        result_.tables.scores.emplace();
      } else {
        result_.tables.merges.emplace();
      }
      return true;
    }
    return open(Json::array());
  }

  bool end_array() override { return end(); }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw_error(ErrorCode::Corrupt, "not a valid tokenizer.json: ", error.what());
  }

 private:
  enum class Table { None, Ids, Scores, Merges };

  // Whether the value to come is a member of the model.
  bool in_model() const { return open_.size() == 2 && keys_[0] == "model" && open_.back()->is_object(); }

  bool value(Json v) {
    if (table_ == Table::Scores && depth_in_table_ == 2 && has_token_ && !has_score_ && v.is_number()) {
      result_.tables.scores->emplace_back(std::move(token_), v.get<double>());
      has_score_ = true;
      return true;
    }
    if (table_ != Table::None) wrong_entry(v.dump());
    place(std::move(v));
    return true;
  }

  Json* place(Json v) {
    if (open_.empty()) {
      result_.root = std::move(v);
      return &result_.root;
    }
    Json& container = *open_.back();
    if (container.is_array()) {
      container.push_back(std::move(v));
      return &container.back();
    }
    Json& slot = container[keys_.back()];
    slot = std::move(v);
    return &slot;
  }

  bool open(Json container) {
    if (open_.size() == kMaxDepth) {
      throw_error(ErrorCode::Corrupt, "tokenizer.json is nested more than ", kMaxDepth, " levels deep");
    }
    open_.push_back(place(std::move(container)));
    keys_.emplace_back();
    return true;
  }

  bool end() {
    if (table_ == Table::None) {
      open_.pop_back();
      keys_.pop_back();
      return true;
    }
    if (depth_in_table_ == 2) {
      if (table_ == Table::Scores && !has_score_) wrong_entry("an array of another form");
      if (table_ == Table::Merges) {
        if (parts_.size() != 2) wrong_entry("an array of " + std::to_string(parts_.size()));
        result_.tables.merges->emplace_back(std::move(parts_[0]), std::move(parts_[1]));
      }
    }
    if (--depth_in_table_ == 0) table_ = Table::None;
    return true;
  }

  void add_joined_merge(const std::string& text) {
    if (text.starts_with("#version")) return;
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      wrong_entry("'" + text + "'");
    result_.tables.merges->emplace_back(text.substr(0, space), text.substr(space + 1));
  }

  [[noreturn]] void wrong_entry(const std::string& found) const {
    const auto fail = [&](const auto&... words) {
      throw_error(ErrorCode::InvalidModel, "tokenizer.json: ", words..., " is ", found);
    };
    if (table_ == Table::Ids) fail("the id of token '", token_, "'");
    if (table_ == Table::Scores) {
      fail("token ", result_.tables.scores->size(), " of the model, expected as a text and its score,");
    }
    fail("merge ", result_.tables.merges->size(), ", expected as two tokens with a space between them,");
    throw_error(ErrorCode::Internal, "unreachable");
  }

  TokenizerJson& result_;
  std::vector<Json*> open_;        // containers from the root to here
  std::vector<std::string> keys_;  // of each, the key whose value comes next
  Table table_ = Table::None;
  int depth_in_table_ = 0;
  std::string token_;
  bool has_token_ = false;
  bool has_score_ = false;
  std::vector<std::string> parts_;
};

}  // namespace

TokenizerJson parse_tokenizer_json(std::string_view text) {
  TokenizerJson result;
  TokenizerSax sax(result);
  Json::sax_parse(text, &sax);
  return result;
}

}  // namespace quern::tokenizer
