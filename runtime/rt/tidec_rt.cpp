// tidec_rt: a bundle's library for Python, without the cost of ctypes on every call. Built once a Python ABI, for all bundles.
//
// It finds the library's C functions by name (tidec/module.hpp, nccl/node.h) and gives Python two classes: Library, and Node, a rank of a plan of
// one node. Addresses and CUDA streams are ints. A failure is RuntimeError with the library's message.
#include <dlfcn.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tidec/module.hpp"

namespace py = pybind11;

namespace {

constexpr int64_t kMessageBytes = 8192, kHandleBytes = 64;

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
    void* found = dlsym(handle_, name);
    if (found == nullptr) throw std::runtime_error(path_ + " has no " + name);
    return reinterpret_cast<Function>(found);
  }

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

// A rank of a program of one node; runtime/nccl/node.h says what its functions do.
class Node {
 public:
  Node(std::shared_ptr<Library> library, int64_t program, int64_t lane, int32_t sum_ctas) : library_(std::move(library)), message_(kMessageBytes) {
    lanes_ = library_->program(program).lanes;
    handle_ = library_->function<Handle>("tidec_node_handle");
    connect_ = library_->function<Connect>("tidec_node_connect");
    gather_ = library_->function<Gather>("tidec_node_gather");
    acquire_ = library_->function<Acquire>("tidec_node_acquire");
    release_ = library_->function<Release>("tidec_node_release");
    reduce_ = library_->function<Reduce>("tidec_node_reduce");
    wait_ = library_->function<Wait>("tidec_node_wait");
    close_ = library_->function<void (*)(void*)>("tidec_node_close");
    node_ = library_->function<void* (*)(int64_t, int64_t, int32_t, char*, int64_t)>("tidec_node_open")(program, lane, sum_ctas, message_.data(), kMessageBytes);
    if (node_ == nullptr) throw std::runtime_error(message_.data());
  }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() { close(); }

  py::bytes handle() {
    char bytes[kHandleBytes];
    check(handle_(open(), bytes, message_.data(), kMessageBytes));
    return py::bytes(bytes, kHandleBytes);
  }

  void connect(const std::vector<std::string>& handles) {
    std::string all;
    for (const std::string& h : handles) all += h;
    if (static_cast<int64_t>(all.size()) != lanes_ * kHandleBytes) throw py::value_error("connect takes the handle of every lane");
    check(connect_(open(), all.data(), message_.data(), kMessageBytes));
  }

  void gather(int64_t call, uintptr_t shard, uintptr_t stream) {
    check(gather_(open(), call, reinterpret_cast<const void*>(shard), reinterpret_cast<void*>(stream), message_.data(), kMessageBytes));
  }

  uintptr_t acquire(int64_t call, uintptr_t stream) {
    const void* landing = nullptr;
    check(acquire_(open(), call, reinterpret_cast<void*>(stream), &landing, message_.data(), kMessageBytes));
    return reinterpret_cast<uintptr_t>(landing);
  }

  void release(int64_t call, uintptr_t stream) { check(release_(open(), call, reinterpret_cast<void*>(stream), message_.data(), kMessageBytes)); }

  void reduce(int64_t call, const std::vector<uintptr_t>& gradients, uintptr_t out, float alpha, bool accumulate, uintptr_t stream) {
    check(reduce_(open(), call, reinterpret_cast<const void* const*>(gradients.data()), reinterpret_cast<void*>(out), alpha, accumulate, reinterpret_cast<void*>(stream),
                  message_.data(), kMessageBytes));
  }

  void wait(int64_t deadline_ms) {
    int32_t code = 0;
    {
      py::gil_scoped_release free;
      code = wait_(open(), deadline_ms, message_.data(), kMessageBytes);
    }
    check(code);
  }

  void close() {
    if (node_ != nullptr) close_(node_);
    node_ = nullptr;
  }

 private:
  using Handle = int32_t (*)(void*, void*, char*, int64_t);
  using Connect = int32_t (*)(void*, const void*, char*, int64_t);
  using Gather = int32_t (*)(void*, int64_t, const void*, void*, char*, int64_t);
  using Acquire = int32_t (*)(void*, int64_t, void*, const void**, char*, int64_t);
  using Release = int32_t (*)(void*, int64_t, void*, char*, int64_t);
  using Reduce = int32_t (*)(void*, int64_t, const void* const*, void*, float, int32_t, void*, char*, int64_t);
  using Wait = int32_t (*)(void*, int64_t, char*, int64_t);

  void* open() const {
    if (node_ == nullptr) throw std::runtime_error("the node is closed");
    return node_;
  }

  void check(int32_t code) const {
    if (code != 0) throw std::runtime_error(message_.data());
  }

  std::shared_ptr<Library> library_;
  std::vector<char> message_;
  int64_t lanes_ = 0;
  void* node_ = nullptr;
  Handle handle_ = nullptr;
  Connect connect_ = nullptr;
  Gather gather_ = nullptr;
  Acquire acquire_ = nullptr;
  Release release_ = nullptr;
  Reduce reduce_ = nullptr;
  Wait wait_ = nullptr;
  void (*close_)(void*) = nullptr;
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
      .def(py::init<std::shared_ptr<Library>, int64_t, int64_t, int32_t>(), py::arg("library"), py::arg("program"), py::arg("lane"), py::arg("sum_ctas") = 16)
      .def("handle", &Node::handle)
      .def("connect", &Node::connect, py::arg("handles"))
      .def("gather", &Node::gather, py::arg("call"), py::arg("shard"), py::arg("stream"))
      .def("acquire", &Node::acquire, py::arg("call"), py::arg("stream"))
      .def("release", &Node::release, py::arg("call"), py::arg("stream"))
      .def("reduce", &Node::reduce, py::arg("call"), py::arg("gradients"), py::arg("out"), py::arg("alpha"), py::arg("accumulate"), py::arg("stream"))
      .def("wait", &Node::wait, py::arg("deadline_ms"))
      .def("close", &Node::close);
}
