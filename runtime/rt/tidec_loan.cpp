// Swaps what two storages of torch hold, for versions of torch whose own UntypedStorage._swap_data_ptr_ is not there. Built once a version of torch.
//
// A storage is named by its StorageImpl's address (UntypedStorage._cdata). Address, bytes, allocator and whether it can be resized change places; views,
// and whatever else refers to a storage, follow. No version counter moves.
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <utility>

extern "C" __attribute__((visibility("default"))) void tidec_swap_storages(std::uintptr_t one, std::uintptr_t other) {
  auto* a = reinterpret_cast<c10::StorageImpl*>(one);
  auto* b = reinterpret_cast<c10::StorageImpl*>(other);
  const std::size_t a_bytes = a->nbytes(), b_bytes = b->nbytes();
  const bool a_resizes = a->resizable(), b_resizes = b->resizable();
  at::Allocator* const a_allocator = a->allocator();
  at::Allocator* const b_allocator = b->allocator();
  std::swap(a->_mutable_data_ptr_no_checks(), b->_mutable_data_ptr_no_checks());
  // NOTE: a storage that can be resized must have its allocator first.
  a->set_allocator(b_allocator);
  b->set_allocator(a_allocator);
  a->set_resizable(b_resizes);
  b->set_resizable(a_resizes);
  a->set_nbytes(b_bytes);
  b->set_nbytes(a_bytes);
}
