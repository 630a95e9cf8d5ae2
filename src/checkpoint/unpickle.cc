#include "checkpoint/unpickle.h"

#include <set>
#include <unordered_map>
#include <utility>

#include "checkpoint/pickle_values.h"
#include "core/check.h"
#include "core/quote.h"

namespace adder {
namespace {

using pickle::Ref;
using pickle::Value;

constexpr std::size_t kMaxPickleBytes = std::size_t{16} << 20;
constexpr std::size_t kMaxValues = std::size_t{1} << 20;

// Opcodes of pickle protocol 2 that state dicts use; names as in Python's pickletools.
enum Opcode : unsigned char {
  kMark = '(',
  kEmptyTuple = ')',
  kStop = '.',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kBuild = 'b',
  kGlobal = 'c',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kProto = 0x80,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
};

class Unpickler {
 public:
  Unpickler(std::span<const std::byte> bytes, std::string_view source)
      : bytes_(bytes), source_(source) {}

  /// Runs to STOP and returns the one value that is left.
  const Value& run() {
    check(!bytes_.empty() && read_uint(1) == kProto, "{}: the pickle has no protocol header",
          source_);
    const std::uint64_t protocol = read_uint(1);
    check(protocol == 2, "{}: the pickle has protocol {}, expected 2, which torch.save writes",
          source_, protocol);
    while (step(static_cast<unsigned char>(read_uint(1)))) {
    }
    check(stack_.size() == 1 && marks_.empty(),
          "{}: the pickle ends with {} values on its stack, expected 1", source_, stack_.size());
    check(at_ == bytes_.size(), "{}: the pickle ends at byte {} of {}", source_, at_,
          bytes_.size());
    return values_[stack_[0]];
  }

  const pickle::Values& values() const { return values_; }

 private:
  bool step(unsigned char opcode);
  void push_tuple(std::size_t count);
  void set_items(std::size_t count);

  std::span<const std::byte> read(std::size_t count) {
    check(count <= bytes_.size() - at_, "{}: the pickle is cut short at byte {}", source_,
          bytes_.size());
    const auto out = bytes_.subspan(at_, count);
    at_ += count;
    return out;
  }
  std::uint64_t read_uint(std::size_t count) {
    const auto bytes = read(count);
    std::uint64_t value = 0;
    for (std::size_t i = count; i-- > 0;) {
      value = value << 8 | std::to_integer<std::uint64_t>(bytes[i]);
    }
    return value;
  }
  /// A two's complement number of `count` bytes, at most 8.
  std::int64_t read_int(std::size_t count) {
    if (count == 0) return 0;
    const std::uint64_t value = read_uint(count);
    const std::uint64_t sign = std::uint64_t{1} << (8 * count - 1);
    return static_cast<std::int64_t>((value ^ sign) - sign);
  }
  std::string_view read_text(std::size_t count) {
    const auto bytes = read(count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string_view read_line() {
    std::size_t count = 0;
    while (at_ + count < bytes_.size() && bytes_[at_ + count] != std::byte{'\n'}) ++count;
    const std::string_view line = read_text(count);
    read(1);
    return line;
  }

  void push_ref(Ref ref) { stack_.push_back(ref); }
  void push(Value value) {
    check(values_.size() < kMaxValues, "{}: the pickle has more than {} values", source_,
          kMaxValues);
    stack_.push_back(static_cast<Ref>(values_.size()));
    values_.push_back(std::move(value));
  }
  /// Values above the newest mark.
  std::size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  Ref top() const {
    check(available() > 0, "{}: the pickle takes from an empty stack at byte {}", source_, at_);
    return stack_.back();
  }
  Ref pop() {
    const Ref ref = top();
    stack_.pop_back();
    return ref;
  }
  /// Drops the newest mark and returns how many values stood above it.
  std::size_t pop_mark() {
    check(!marks_.empty(), "{}: the pickle looks for a mark that is not there at byte {}", source_,
          at_);
    const std::size_t count = available();
    marks_.pop_back();
    return count;
  }
  void put(std::uint64_t index) {
    check(memo_.size() < kMaxValues, "{}: the pickle has more than {} memos", source_, kMaxValues);
    memo_[index] = top();
  }
  void get(std::uint64_t index) {
    const auto found = memo_.find(index);
    check(found != memo_.end(), "{}: the pickle refers to memo {}, which was not set", source_,
          index);
    push_ref(found->second);
  }

  std::span<const std::byte> bytes_;
  std::string_view source_;
  std::size_t at_ = 0;
  pickle::Values values_;
  std::vector<Ref> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Ref> memo_;
};

void Unpickler::push_tuple(std::size_t count) {
  check(available() >= count, "{}: the pickle takes from an empty stack at byte {}", source_, at_);
  const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
  pickle::Tuple tuple{.items = {first, stack_.end()}};
  stack_.erase(first, stack_.end());
  push(std::move(tuple));
}

void Unpickler::set_items(std::size_t count) {
  check(count % 2 == 0 && available() > count,
        "{}: the pickle sets an odd number of items, or none's, at byte {}", source_, at_);
  auto* dict = std::get_if<pickle::Dict>(&values_[stack_[stack_.size() - count - 1]]);
  check(dict != nullptr, "{}: the pickle sets items of a value that is no dictionary at byte {}",
        source_, at_);
  for (std::size_t i = stack_.size() - count; i < stack_.size(); i += 2) {
    dict->items.emplace_back(stack_[i], stack_[i + 1]);
  }
  stack_.resize(stack_.size() - count);
}

bool Unpickler::step(unsigned char opcode) {
  switch (opcode) {
    case kStop:
      return false;
    case kMark:
      check(marks_.size() < kMaxValues, "{}: the pickle has more than {} marks", source_,
            kMaxValues);
      marks_.push_back(stack_.size());
      return true;
    case kNone:
      push(pickle::None{});
      return true;
    case kNewTrue:
    case kNewFalse:
      push(opcode == kNewTrue);
      return true;
    case kBinInt:
      push(read_int(4));
      return true;
    case kBinInt1:
      push(static_cast<std::int64_t>(read_uint(1)));
      return true;
    case kBinInt2:
      push(static_cast<std::int64_t>(read_uint(2)));
      return true;
    case kLong1: {
      const std::uint64_t count = read_uint(1);
      check(count <= 8, "{}: the pickle has an integer of {} bytes, expected at most 8", source_,
            count);
      push(read_int(count));
      return true;
    }
    case kBinUnicode:
      push(std::string(read_text(read_uint(4))));
      return true;
    case kEmptyDict:
      push(pickle::Dict{});
      return true;
    case kEmptyTuple:
      push(pickle::Tuple{});
      return true;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      push_tuple(opcode - kTuple1 + 1u);
      return true;
    case kTuple:
      push_tuple(pop_mark());
      return true;
    case kSetItem:
      set_items(2);
      return true;
    case kSetItems:
      set_items(pop_mark());
      return true;
    case kBinPut:
      put(read_uint(1));
      return true;
    case kLongBinPut:
      put(read_uint(4));
      return true;
    case kBinGet:
      get(read_uint(1));
      return true;
    case kLongBinGet:
      get(read_uint(4));
      return true;
    case kGlobal: {
      const std::string_view module = read_line();
      push(pickle::resolve_global(module, read_line(), source_));
      return true;
    }
    case kBinPersId:
      push(pickle::resolve_persistent_id(values_, pop(), source_));
      return true;
    case kReduce: {
      const Ref arguments = pop();
      push(pickle::call(values_, pop(), arguments, source_));
      return true;
    }
    case kBuild:  // attributes of the state dict, `_metadata` with module versions: not needed
      pop();
      check(std::holds_alternative<pickle::Dict>(values_[top()]),
            "{}: the pickle sets attributes of a value that is no dictionary at byte {}", source_,
            at_);
      return true;
    default:
      fail("{}: the pickle has opcode 0x{:02x} at byte {}, which no state dict needs", source_,
           opcode, at_ - 1);
  }
}

}  // namespace

std::vector<PickledTensor> unpickle_state_dict(std::span<const std::byte> bytes,
                                               std::string_view source) {
  check(bytes.size() <= kMaxPickleBytes, "{}: the pickle has {} bytes, expected at most {}", source,
        bytes.size(), kMaxPickleBytes);
  Unpickler unpickler(bytes, source);
  const auto* root = std::get_if<pickle::Dict>(&unpickler.run());
  check(root != nullptr, "{}: the pickle is not a state dict, expected a dictionary", source);
  const pickle::Values& values = unpickler.values();
  std::set<std::string_view> names;
  std::vector<PickledTensor> out;
  for (const auto& [key, value] : root->items) {
    const auto* name = std::get_if<std::string>(&values[key]);
    check(name != nullptr, "{}: the state dict has a key that is no string", source);
    check(names.insert(*name).second, "{}: the state dict has the key {} twice", source,
          in_quotes(*name));
    const auto* tensor = std::get_if<pickle::Tensor>(&values[value]);
    check(tensor != nullptr, "{}: {} in the state dict is no tensor", source, in_quotes(*name));
    out.push_back({.name = *name,
                   .storage = std::get<PickledStorage>(values[tensor->storage]),
                   .offset = tensor->offset,
                   .shape = tensor->shape,
                   .strides = tensor->strides});
  }
  return out;
}

}  // namespace adder
