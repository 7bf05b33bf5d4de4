// Where the elements of chunks lie: divides an operation's elements over size classes, fine chunks and tiles.
//
// Note [Uneven chunks]
// `elements` are those of one chunk of every class: the whole tensor of an allreduce, one rank's part of an allgather.
// They are divided over the classes, and a chunk over its fine chunks, at multiples of a cache line as long as there is
// at least one for each; else at any element. So every number of elements works, and small chunks may be empty. All
// ranks compute the same.
//
// Values.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace horocache::program {

class Sizes {
 public:
  Sizes(int64_t elements, int64_t element_bytes, int32_t classes, int32_t refinement, bool uniform);

  int64_t element_bytes() const { return element_bytes_; }
  // Of a fine chunk of this class; `part` counts within the chunk.
  int64_t PartElements(int64_t size_class, int64_t part) const {
    return PartBegin(size_class, part + 1) - PartBegin(size_class, part);
  }
  // The largest fine chunk.
  int64_t MostPartElements() const { return most_part_; }

  // The first element of a fine chunk of an input or output; of the one behind the last, how many elements there are.
  int64_t Offset(int64_t fine) const {
    const int64_t chunk = fine / refinement_, size_class = chunk % classes_;
    return chunk / classes_ * elements_ + ClassBegin(size_class) + PartBegin(size_class, fine % refinement_);
  }
  // The same in scratch, where every fine chunk has room for the largest: what lies there may be of any size class, and
  // fine chunks side by side must not touch.
  int64_t ScratchOffset(int64_t fine) const { return fine * most_part_; }
  // Whether a uniform program can run on this many elements as they are.
  bool fits() const { return fits_; }

 private:
  int64_t ClassBegin(int64_t size_class) const { return Cut(elements_, classes_, size_class); }
  int64_t ClassElements(int64_t size_class) const { return ClassBegin(size_class + 1) - ClassBegin(size_class); }
  int64_t PartBegin(int64_t size_class, int64_t part) const {
    return Cut(ClassElements(size_class), refinement_, part);
  }
  // Where piece `index` of `pieces` begins.
  int64_t Cut(int64_t elements, int64_t pieces, int64_t index) const {
    const int64_t line = Line(elements, pieces);
    const int64_t lines = elements / line;
    return index == pieces ? elements : (lines / pieces * index + std::min(index, lines % pieces)) * line;
  }

  // One piece of each size that Cut makes: the first ones have a line more, the last one has what is left over.
  std::array<int64_t, 3> Kinds(int64_t elements, int64_t pieces) const {
    return {0, elements / Line(elements, pieces) % pieces, pieces - 1};
  }
  int64_t Line(int64_t elements, int64_t pieces) const {
    return elements >= pieces * line_elements_ ? line_elements_ : 1;
  }

  int64_t elements_, element_bytes_, classes_, refinement_;
  int64_t line_elements_;
  int64_t most_part_ = 0;
  bool fits_ = true;
};

}  // namespace horocache::program
