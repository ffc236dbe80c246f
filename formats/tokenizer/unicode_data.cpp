#include "formats/tokenizer/unicode_data.h"

#include <algorithm>
#include <iterator>

namespace quern::tokenizer {
namespace {

struct CategoryRun {
  uint32_t first;
  Category category;
};
struct ScriptRange {
  uint32_t first;
  uint32_t last;
  Script script;
};
struct ScriptClassRun {
  uint32_t first;
  uint8_t number;
};
// Every step-th code point from first to last has its lower case at this distance.
struct LowerRun {
  uint32_t first;
  uint32_t last;
  int32_t distance;
  uint32_t step;
};

#include "formats/tokenizer/unicode_tables.inc"

// The entry of a table of runs that a code point falls in; to be asked in ascending order.
template <class Run>
class RunCursor {
 public:
  explicit RunCursor(std::span<const Run> runs) : runs_(runs) {}
  const Run& operator()(uint32_t c) {
    while (next_ < runs_.size() && runs_[next_].first <= c) ++next_;
    return runs_[next_ - 1];
  }

 private:
  std::span<const Run> runs_;
  size_t next_ = 0;
};

CharClass class_of(uint32_t c, Category category) {
  if (is_white_space(c)) return CharClass::Space;
  if (category >= Category::Ll && category <= Category::Lu) return CharClass::Letter;
  if (category >= Category::Nd && category <= Category::No) return CharClass::Number;
  return CharClass::Other;
}

std::vector<uint8_t> property_bits() {
  std::vector<uint8_t> bits(0x110000, 0);
  const auto mark = [&](std::span<const CodeRange> ranges, Property property) {
    for (const CodeRange& range : ranges) {
      for (uint32_t c = range.first; c <= range.last; ++c) bits[c] |= property;
    }
  };
  mark(kWordCharacterRanges, kWordCharacter);
  mark(kPunctuationRanges, kPunctuation);
  mark(kNumericRanges, kNumeric);
  mark(kBertControlRanges, kBertControl);
  mark(kNonspacingMarkRanges, kNonspacingMark);
  mark(kCombiningMarkRanges, kCombiningMark);
  mark(kUnnormalizedRanges, kUnnormalized);
  return bits;
}

}  // namespace

uint16_t ByteTable::find_or_add(const std::array<uint8_t, 256>& bytes) {
  auto known = std::find(blocks_.begin(), blocks_.end(), bytes);
  if (known == blocks_.end()) known = blocks_.insert(blocks_.end(), bytes);
  return static_cast<uint16_t>(known - blocks_.begin());
}

const ByteTable& category_table() {
  static const ByteTable table(
      [run = RunCursor<CategoryRun>(kCategoryRuns)](uint32_t c) mutable { return run(c).category; });
  return table;
}

const ByteTable& char_class_table() {
  static const ByteTable table([run = RunCursor<CategoryRun>(kCategoryRuns)](uint32_t c) mutable {
    return class_of(c, run(c).category);
  });
  return table;
}

const ByteTable& property_table() {
  static const ByteTable table([bits = property_bits()](uint32_t c) { return bits[c]; });
  return table;
}

const ByteTable& script_class_table() {
  static const ByteTable table(
      [run = RunCursor<ScriptClassRun>(kScriptClassRuns)](uint32_t c) mutable { return run(c).number; });
  return table;
}

char32_t to_lower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  const auto* run = std::upper_bound(std::begin(kLowerRuns), std::end(kLowerRuns), c,
                                     [](char32_t value, const LowerRun& r) { return value < r.first; });
  if (run == std::begin(kLowerRuns)) return c;
  --run;
  if (c > run->last || (c - run->first) % run->step != 0) return c;
  return static_cast<char32_t>(static_cast<int32_t>(c) + run->distance);
}

std::vector<CodeRange> script_ranges(Script script) {
  std::vector<CodeRange> ranges;
  for (const ScriptRange& range : kScriptRanges) {
    if (range.script == script) ranges.push_back({range.first, range.last});
  }
  return ranges;
}

std::vector<CodeRange> category_ranges(Category first, Category last) {
  std::vector<CodeRange> ranges;
  for (size_t i = 0; i < std::size(kCategoryRuns); ++i) {
    const CategoryRun& run = kCategoryRuns[i];
    if (run.category < first || run.category > last) continue;
    const uint32_t end = i + 1 < std::size(kCategoryRuns) ? kCategoryRuns[i + 1].first : 0x110000;
    if (!ranges.empty() && ranges.back().last + 1 == run.first) {
      ranges.back().last = end - 1;
    } else {
      ranges.push_back({run.first, end - 1});
    }
  }
  return ranges;
}

}  // namespace quern::tokenizer
