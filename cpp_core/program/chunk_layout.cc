#include "program/chunk_layout.h"

#include "base/memory.h"

namespace horocache::program {

Sizes::Sizes(int64_t elements, int64_t element_bytes, int32_t classes, int32_t refinement, bool uniform)
    : elements_(elements),
      element_bytes_(element_bytes),
      classes_(classes),
      refinement_(refinement),
      line_elements_(std::max<int64_t>(1, static_cast<int64_t>(kCacheLine) / element_bytes)) {
  int64_t least_part = elements;
  for (const int64_t size_class : Kinds(elements_, classes_)) {
    for (const int64_t part : Kinds(ClassElements(size_class), refinement_)) {
      most_part_ = std::max(most_part_, PartElements(size_class, part));
      least_part = std::min(least_part, PartElements(size_class, part));
    }
  }
  fits_ = !uniform || most_part_ == least_part;
}

}  // namespace horocache::program
