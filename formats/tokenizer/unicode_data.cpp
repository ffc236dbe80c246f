#include "formats/tokenizer/unicode_data.h"

#include <algorithm>
#include <iterator>

namespace quern::tokenizer {
namespace {

struct CategoryRun {
  uint32_t first;
  Category category;
};

#include "formats/tokenizer/unicode_tables.inc"

// The category of each code point, asked in ascending order.
class CategoryCursor {
 public:
  Category operator()(uint32_t c) {
    while (next_ != std::end(kCategoryRuns) && next_->first <= c) ++next_;
    return std::prev(next_)->category;
  }

 private:
  const CategoryRun* next_ = std::begin(kCategoryRuns);
};

CharClass class_of(uint32_t c, Category category) {
  if (is_white_space(c)) return CharClass::Space;
  if (category >= Category::Ll && category <= Category::Lu) return CharClass::Letter;
  if (category >= Category::Nd && category <= Category::No) return CharClass::Number;
  return CharClass::Other;
}

}  // namespace

uint16_t ByteTable::find_or_add(const std::array<uint8_t, 256>& bytes) {
  auto known = std::find(blocks_.begin(), blocks_.end(), bytes);
  if (known == blocks_.end()) known = blocks_.insert(blocks_.end(), bytes);
  return static_cast<uint16_t>(known - blocks_.begin());
}

const ByteTable& category_table() {
  static const ByteTable table{CategoryCursor()};
  return table;
}

const ByteTable& char_class_table() {
  static const ByteTable table(
      [categories = CategoryCursor()](uint32_t c) mutable { return class_of(c, categories(c)); });
  return table;
}

}  // namespace quern::tokenizer
