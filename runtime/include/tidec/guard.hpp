// The border of a C interface: nothing that is thrown crosses it, all of it becomes text.
#pragma once

#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

namespace tidec {

// Room for a reason.
inline constexpr int64_t kReasonBytes = 8192;

// Writes a reason, cut where it is too long, and never an empty one: that would read as none.
inline void tell(char* message, int64_t room, const char* why) {
  if (room > 0) std::snprintf(message, static_cast<size_t>(room), "%s", *why != '\0' ? why : "it failed, and nothing said why");
}

// Does something. Returns whether it came to its end; else what was thrown is told, and nothing is allocated. Failure: what the target throws, with its `why`.
template <class Failure, class Do>
bool guarded(char* message, int64_t room, Do what) {
  try {
    what();
    return true;
  } catch (const Failure& problem) {
    tell(message, room, problem.why.c_str());
  } catch (const std::bad_alloc&) {
    tell(message, room, "there is no more memory");
  } catch (const std::exception& problem) {
    tell(message, room, problem.what());
#ifdef __GLIBCXX__
  } catch (const abi::__forced_unwind&) {
    // NOTE: the thread ends, as one of Python's does that comes back when Python has ended; who holds that up ends the process.
    throw;
#endif
  } catch (...) {
    tell(message, room, "what was thrown says nothing");
  }
  return false;
}

// Makes a call of a node. refuse: gives, or throws, why it is none, and changes nothing then.  what: makes it.  fail: is told why that failed, which is the
// end of the node, and gives what it says of its end.
template <class Failure, class Refuse, class Do, class Fail>
bool called(char* message, int64_t room, Refuse refuse, Do what, Fail fail) {
  bool has_begun = false;
  char why[kReasonBytes];
  const bool is_made = guarded<Failure>(why, kReasonBytes, [&] {
    const std::string reason = refuse();
    if (!reason.empty()) throw Failure{reason};
    has_begun = true;
    what();
  });
  if (is_made) return true;
  const char* told = why;
  if (has_begun) guarded<Failure>(message, room, [&] { told = fail(why); });
  tell(message, room, told);
  return false;
}

}  // namespace tidec
