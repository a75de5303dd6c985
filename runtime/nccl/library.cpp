#include "nccl/library.hpp"

#include <dlfcn.h>

#include <string>

#include "cuda/check.hpp"

namespace tidec::nccl {

namespace {

using cuda::Failure;

constexpr const char* kFile = "libnccl.so.2";

std::string version_text(int version) {
  if (version < 10000) return std::to_string(version / 1000) + "." + std::to_string(version / 100 % 10) + "." + std::to_string(version % 100);
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." + std::to_string(version % 100);
}

[[noreturn]] void unfit(const std::string& why) {
  throw Failure{why + "\n  plans of several nodes need NCCL " + version_text(kMinVersion) +
                " or later: install the wheel nvidia-nccl-cu13 and start the job with LD_PRELOAD set to its nvidia/nccl/lib/" + kFile};
}

Library load() {
  void* handle = dlopen(kFile, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) handle = dlopen(kFile, RTLD_NOW);
  if (handle == nullptr) {
    const char* const why = dlerror();
    unfit(std::string("NCCL cannot be loaded: ") + (why != nullptr ? why : kFile));
  }
  Library found{};
  std::string at = kFile;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) unfit("the NCCL of this process (" + at + ") has no " + name);
  };
  find(found.get_version, "ncclGetVersion");
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(found.get_version), &info) != 0 && info.dli_fname != nullptr) at = info.dli_fname;
  int version = 0;
  if (found.get_version(&version) != kSuccess) unfit("the NCCL of this process (" + at + ") does not say its version");
  at += ", version " + version_text(version);
  if (version < kMinVersion) unfit("the NCCL of this process (" + at + ") is too old");
  find(found.get_error_string, "ncclGetErrorString");
  find(found.get_last_error, "ncclGetLastError");
  find(found.get_unique_id, "ncclGetUniqueId");
  find(found.comm_init, "ncclCommInitRankConfig");
  find(found.comm_destroy, "ncclCommDestroy");
  find(found.comm_properties, "ncclCommQueryProperties");
  find(found.mem_alloc, "ncclMemAlloc");
  find(found.mem_free, "ncclMemFree");
  find(found.window_register, "ncclCommWindowRegister");
  find(found.window_deregister, "ncclCommWindowDeregister");
  find(found.peer_pointer, "ncclGetPeerDevicePointer");
  find(found.put_signal, "ncclPutSignal");
  find(found.signal, "ncclSignal");
  find(found.wait_signal, "ncclWaitSignal");
  find(found.group_start, "ncclGroupStart");
  find(found.group_end, "ncclGroupEnd");
  return found;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

void check(int result, const char* what) {
  if (result == kSuccess) return;
  const char* const last = library().get_last_error(nullptr);
  throw Failure{std::string(what) + ": " + library().get_error_string(result) + (last != nullptr && *last != 0 ? std::string(": ") + last : std::string())};
}

}  // namespace tidec::nccl
