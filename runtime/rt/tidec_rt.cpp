// tidec_rt: a bundle's library for Python, without the cost of ctypes on every call. Built once a Python ABI, for all bundles.
//
// It finds the library's C functions by name (tidec/module.hpp, tidec/node.h) and gives Python two classes: Library, and Node, a rank of a plan under a
// live job. Addresses and CUDA streams are ints. A failure is RuntimeError with the library's message.
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tidec/module.hpp"
#include "tidec/node.h"

namespace py = pybind11;

namespace {

constexpr int64_t kMessageBytes = 8192, kDeadlineMs = 30000;

// An opened library. It stays open: streams and memory of it may live as long as the process.
class Library {
 public:
  explicit Library(const std::string& path) : path_(path), handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) throw std::runtime_error(dlerror());
    num_programs_ = function<int64_t (*)()>("tidec_num_programs");
    program_at_ = function<const tidec_program* (*)(int64_t)>("tidec_program_at");
  }

  template <class Function>
  Function function(const char* name) const {
    void* found = look(name);
    if (found == nullptr) throw std::runtime_error(path_ + " has no " + name);
    return reinterpret_cast<Function>(found);
  }

  // Null where it is not there.
  void* look(const char* name) const { return dlsym(handle_, name); }

  int64_t num_programs() const { return num_programs_(); }

  const tidec_program& program(int64_t i) const {
    if (i < 0 || i >= num_programs_()) throw py::index_error("there is no such program");
    return *program_at_(i);
  }

 private:
  std::string path_;
  void* handle_;
  int64_t (*num_programs_)() = nullptr;
  const tidec_program* (*program_at_)(int64_t) = nullptr;
};

// A rank of a program; tidec/node.h says what its functions do. Calls may come from several threads, one at a time.
class Node {
 public:
  Node(std::shared_ptr<Library> library, int64_t program, int64_t rank, int32_t sum_ctas, int64_t deadline_ms)
      : library_(std::move(library)), message_(kMessageBytes) {
    num_ranks_ = library_->program(program).nodes * library_->program(program).lanes;
    find(handle_, "tidec_node_handle");
    find(connect_, "tidec_node_connect");
    find(arena_, "tidec_node_arena");
    find(gather_, "tidec_node_gather");
    find(acquire_, "tidec_node_acquire");
    find(release_, "tidec_node_release");
    find(reduce_, "tidec_node_reduce");
    find(wait_, "tidec_node_wait");
    find(close_, "tidec_node_close");
    counts_ = reinterpret_cast<decltype(counts_)>(library_->look("tidec_node_counts"));
    decltype(&tidec_node_open) open = nullptr;
    find(open, "tidec_node_open");
    const py::gil_scoped_release free;
    node_ = open(program, rank, sum_ctas, deadline_ms, message_.data(), kMessageBytes);
    if (node_ == nullptr) throw std::runtime_error(message_.data());
    decltype(&tidec_node_ask) ask = reinterpret_cast<decltype(ask)>(library_->look("tidec_node_ask"));
    if (ask != nullptr) ask(node_, &Node::goes_on, nullptr, message_.data(), kMessageBytes);
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() { close_(node_); }

  py::bytes handle() {
    char bytes[TIDEC_NODE_HANDLE_BYTES];
    call(handle_, static_cast<void*>(bytes));
    return py::bytes(bytes, sizeof bytes);
  }

  void connect(const std::vector<std::string>& handles) {
    std::string all;
    for (const std::string& h : handles) {
      if (h.size() != TIDEC_NODE_HANDLE_BYTES) throw py::value_error("a handle has " + std::to_string(TIDEC_NODE_HANDLE_BYTES) + " bytes");
      all += h;
    }
    if (static_cast<int64_t>(handles.size()) != num_ranks_) throw py::value_error("connect takes the handles of all " + std::to_string(num_ranks_) + " ranks");
    call(connect_, static_cast<const void*>(all.data()));
  }

  std::pair<uintptr_t, int64_t> arena() {
    void* at = nullptr;
    int64_t bytes = 0;
    call(arena_, &at, &bytes);
    return {reinterpret_cast<uintptr_t>(at), bytes};
  }

  void gather(int64_t number, uintptr_t shard, uintptr_t stream) { call(gather_, number, reinterpret_cast<const void*>(shard), reinterpret_cast<void*>(stream)); }

  uintptr_t acquire(int64_t number, uintptr_t stream) {
    const void* landing = nullptr;
    call(acquire_, number, reinterpret_cast<void*>(stream), &landing);
    return reinterpret_cast<uintptr_t>(landing);
  }

  void release(int64_t number, uintptr_t stream) { call(release_, number, reinterpret_cast<void*>(stream)); }

  void reduce(int64_t number, const std::vector<uintptr_t>& gradients, uintptr_t out, float alpha, bool accumulate, uintptr_t stream) {
    call(reduce_, number, reinterpret_cast<const void* const*>(gradients.data()), static_cast<int64_t>(gradients.size()), reinterpret_cast<void*>(out), alpha,
         static_cast<int32_t>(accumulate), reinterpret_cast<void*>(stream));
  }

  void wait(int64_t deadline_ms) { call(wait_, deadline_ms); }

  // Ops, then bytes, of each kind.
  std::vector<int64_t> counts(int64_t number) {
    if (counts_ == nullptr) throw std::runtime_error("this target does not count what it carries out");
    std::vector<int64_t> found(2 * TIDEC_NODE_KINDS);
    call(counts_, number, found.data());
    return found;
  }

  void close() {
    check_free();
    const py::gil_scoped_release free;
    const std::lock_guard<std::mutex> lock(mutex_);
    close_(node_);
    node_ = nullptr;
  }

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    function = library_->function<Function>(name);
  }

  // Lets Python see the signals that have come meanwhile, Ctrl-C for one: only its main thread does. 0 where a handler has raised something.
  static int32_t goes_on(void*) {
    const py::gil_scoped_acquire held;
    return PyErr_CheckSignals() == 0;
  }

  // A handler of a signal may run in the middle of a call, on the thread that makes it.
  void check_free() const {
    if (owner_.load() == std::this_thread::get_id()) throw std::runtime_error("the node is in a call of this thread's");
  }

  // Python goes on meanwhile.
  template <class Function, class... Arguments>
  void call(Function function, Arguments... arguments) {
    check_free();
    std::string why;
    {
      const py::gil_scoped_release free;
      const std::lock_guard<std::mutex> lock(mutex_);
      if (node_ == nullptr) throw std::runtime_error("the node is closed");
      owner_.store(std::this_thread::get_id());
      if (function(node_, arguments..., message_.data(), kMessageBytes) != TIDEC_NODE_OK) why = message_.data();
      owner_.store(std::thread::id());
    }
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (!why.empty()) throw std::runtime_error(why);
  }

  std::shared_ptr<Library> library_;
  std::vector<char> message_;
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
  int64_t num_ranks_ = 0;
  tidec_node* node_ = nullptr;
  decltype(&tidec_node_handle) handle_ = nullptr;
  decltype(&tidec_node_connect) connect_ = nullptr;
  decltype(&tidec_node_arena) arena_ = nullptr;
  decltype(&tidec_node_gather) gather_ = nullptr;
  decltype(&tidec_node_acquire) acquire_ = nullptr;
  decltype(&tidec_node_release) release_ = nullptr;
  decltype(&tidec_node_reduce) reduce_ = nullptr;
  decltype(&tidec_node_wait) wait_ = nullptr;
  decltype(&tidec_node_counts) counts_ = nullptr;
  decltype(&tidec_node_close) close_ = nullptr;
};

}  // namespace

PYBIND11_MODULE(tidec_rt, m) {
  m.doc() = "Bundles' libraries for Python.";
  py::class_<tidec_program>(m, "Program")
      .def_property_readonly("name", [](const tidec_program& p) { return std::string(p.name); })
      .def_property_readonly("plan_digest", [](const tidec_program& p) { return std::string(p.plan_digest); })
      .def_readonly("nodes", &tidec_program::nodes)
      .def_readonly("lanes", &tidec_program::lanes)
      .def_readonly("arena_bytes", &tidec_program::arena_bytes)
      .def_property_readonly("is_reduction", [](const tidec_program& p) { return p.is_reduction != 0; });
  py::class_<Library, std::shared_ptr<Library>>(m, "Library")
      .def(py::init<const std::string&>(), py::arg("path"))
      .def_property_readonly("num_programs", &Library::num_programs)
      .def("program", &Library::program, py::arg("number"), py::return_value_policy::reference_internal);
  py::class_<Node>(m, "Node")
      .def(py::init<std::shared_ptr<Library>, int64_t, int64_t, int32_t, int64_t>(), py::arg("library"), py::arg("program"), py::arg("rank"), py::arg("sum_ctas") = 16,
           py::arg("deadline_ms") = kDeadlineMs)
      .def("handle", &Node::handle)
      .def("connect", &Node::connect, py::arg("handles"))
      .def("arena", &Node::arena)
      .def("gather", &Node::gather, py::arg("call"), py::arg("shard"), py::arg("stream") = 0)
      .def("acquire", &Node::acquire, py::arg("call"), py::arg("stream") = 0)
      .def("release", &Node::release, py::arg("call"), py::arg("stream") = 0)
      .def("reduce", &Node::reduce, py::arg("call"), py::arg("gradients"), py::arg("out"), py::arg("alpha"), py::arg("accumulate"), py::arg("stream") = 0)
      .def("wait", &Node::wait, py::arg("deadline_ms"))
      .def("counts", &Node::counts, py::arg("call"))
      .def("close", &Node::close);
}
