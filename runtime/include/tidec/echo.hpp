// The Runner that prints: one line a descriptor, byte for byte the listing of the plan (tidec/plan/listing.py has the grammar).
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tidec/runner.hpp"

namespace tidec {

class Echo {
 public:
  Echo() = default;
  Echo(const Echo&) = delete;
  Echo& operator=(const Echo&) = delete;
  ~Echo() { std::free(text_); }

  // What was printed since the last clear().
  const char* text() const { return text_; }
  size_t size() const { return size_; }
  void clear() { size_ = 0; }

  void wait(const Stream& s, const Level& x, int) { line(s, "wait").counter(x.counter).add(" by ").rank(x.rank).add(" >= ").number(x.value).end(); }
  void signal(const Stream& s, const Level& x) { line(s, "signal").level(x).end(); }
  void copy(const Stream& s, const Move& m) { line(s, "copy").move(m).end(); }
  void put(const Stream& s, const Move& m, const Level& then, const Level& done, int64_t context) {
    line(s, "put").move(m).add(" then ").level(then).add(" done ").counter(done.counter).add(" = ").number(done.value);
    if (context != 0) add(" over ").number(context);
    end();
  }
  void zero(const Stream& s, const Extent& x) { line(s, "zero").extent(x).end(); }
  void cast(const Stream& s, const Move& m) {
    line(s, "cast").place(m.src).add(" -> ").place(m.dst).add(" ").number(m.width / item_bytes(m.from)).add(" ");
    add(name(m.from)).add(">").add(name(m.to)).end();
  }
  void begin_sum(const Stream& s, const Extent& into, bool seed) { line(s, "sum").place(into.place).add(" seed=").number(seed).end(); }
  void add(const Stream& s, const Move& m) { line(s, "sum").add("+ ").move(m).end(); }
  void end_sum(const Stream&) {}
  void begin_land(const Stream& s, const Extent& into, bool seed) { line(s, "land").place(into.place).add(" seed=").number(seed).end(); }
  void land(const Stream& s, const Move& m, Reduction how) {
    line(s, "land").add(how == Reduction::kInOrder ? "+ " : "* ").place(m.src).add(" -> ").place(m.dst).add(" ").number(m.width).end();
  }
  void end_land(const Stream&) {}
  void begin_copy(const Stream&) {}
  void end_copy(const Stream&) {}
  void begin_set(const Stream&) {}
  void end_set(const Stream&) {}
  void join(const Stream& s) { add(s.name).add(" join").end(); }
  void read(const Stream& s, const Extent& x) { line(s, "read").extent(x).end(); }
  void free(const Stream& s, const Extent& x) { line(s, "free").extent(x).end(); }

 private:
  static const char* name(Dtype type) {
    return type == Dtype::kBf16 ? "bf16" : type == Dtype::kFp16 ? "fp16" : type == Dtype::kFp32 ? "fp32" : "fp64";
  }

  Echo& line(const Stream& s, const char* kind) { return add(s.name).add(" ").add(kind).add(" "); }
  void end() { add("\n"); }

  Echo& level(const Level& x) { return counter(x.counter).add(" for ").rank(x.rank).add(" = ").number(x.value); }

  Echo& counter(const Counter& c) {
    add(c.flag->name);
    for (int i = 0; i < c.num_keys; ++i) add(i == 0 ? "[" : ",").number(c.keys[i]);
    return c.num_keys > 0 ? add("]") : *this;
  }

  Echo& rank(const Rank& r) {
    number(r.node).add(".");
    return r.lane == kAll ? add("*") : number(r.lane);
  }

  Echo& place(const Place& p) {
    switch (p.space) {
      case Space::kArena: add("arena"); break;
      case Space::kShard: add("shard"); break;
      case Space::kGrad: add("grad").number(p.param); break;
      case Space::kOut: add("out"); break;
    }
    return add("@").rank(p.rank).add("+").number(p.offset);
  }

  Echo& extent(const Extent& x) { return place(x.place).add(" ").number(x.bytes).add("x1"); }

  Echo& move(const Move& m) {
    place(m.src);
    if (m.rows > 1) add("/").number(m.src_pitch);
    add(" -> ").place(m.dst);
    if (m.rows > 1) add("/").number(m.dst_pitch);
    return add(" ").number(m.width).add("x").number(m.rows);
  }

  Echo& number(int64_t value) {
    char digits[24];
    char* end = digits + sizeof digits;
    char* first = end;
    uint64_t rest = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
    do {
      *--first = static_cast<char>('0' + rest % 10);
      rest /= 10;
    } while (rest > 0);
    if (value < 0) *--first = '-';
    return append(first, static_cast<size_t>(end - first));
  }

  Echo& add(const char* word) { return append(word, std::strlen(word)); }

  Echo& append(const char* bytes, size_t count) {
    if (size_ + count > capacity_) grow(size_ + count);
    std::memcpy(text_ + size_, bytes, count);
    size_ += count;
    return *this;
  }

  void grow(size_t least_size) {
    capacity_ = least_size * 2 + 4096;
    text_ = static_cast<char*>(std::realloc(text_, capacity_));
    if (text_ == nullptr) {
      std::fprintf(stderr, "echo: out of memory at %zu bytes\n", capacity_);
      std::exit(3);
    }
  }

  char* text_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

using Target = Echo;

}  // namespace tidec
