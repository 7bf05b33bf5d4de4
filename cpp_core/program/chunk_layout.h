// Offsets and sizes of chunks: divides an operation's elements over size classes, and each chunk over its fine chunks.
//
// Note [Uneven chunks]
// `elements` is the size of one place, which has one chunk of every class: the whole tensor of an allreduce, one rank's
// part of an allgather. The place is cut into its chunks, and each chunk into its fine chunks. Cuts are at multiples of
// a cache line if there is at least one line for each piece, and else at any element. For example, 100 float32 elements
// (16 in a line) in 3 classes give chunks of 32, 32 and 36 elements; 2 elements give chunks of 1, 1 and 0. So every
// number of elements works, and small chunks may be empty. All ranks compute the same cuts.
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
  // Elements of fine chunk `part` of a chunk of this class.
  int64_t PartElements(int64_t size_class, int64_t part) const {
    return PartBegin(size_class, part + 1) - PartBegin(size_class, part);
  }
  // Elements of the largest fine chunk.
  int64_t MostPartElements() const { return most_part_; }

  // The first element of a fine chunk in an input or output. For the index after the last fine chunk, the number of
  // elements in the buffer.
  int64_t Offset(int64_t fine) const {
    const int64_t chunk = fine / refinement_, size_class = chunk % classes_;
    return chunk / classes_ * elements_ + ClassBegin(size_class) + PartBegin(size_class, fine % refinement_);
  }
  // The same for a scratch buffer, where every fine chunk has room for the largest one: it may hold any size class, and
  // adjacent fine chunks must not overlap.
  int64_t ScratchOffset(int64_t fine) const { return fine * most_part_; }
  // False if the program is uniform and its fine chunks would differ in size.
  bool fits() const { return fits_; }

 private:
  int64_t ClassBegin(int64_t size_class) const { return Cut(elements_, classes_, size_class); }
  int64_t ClassElements(int64_t size_class) const { return ClassBegin(size_class + 1) - ClassBegin(size_class); }
  int64_t PartBegin(int64_t size_class, int64_t part) const {
    return Cut(ClassElements(size_class), refinement_, part);
  }
  // The first element of piece `index` when `elements` elements are cut into `pieces` pieces.
  int64_t Cut(int64_t elements, int64_t pieces, int64_t index) const {
    const int64_t line = Line(elements, pieces);
    const int64_t lines = elements / line;
    return index == pieces ? elements : (lines / pieces * index + std::min(index, lines % pieces)) * line;
  }

  // The index of one piece of each size that Cut produces: the first pieces may have one line more, and the last piece
  // has the remainder.
  std::array<int64_t, 3> Kinds(int64_t elements, int64_t pieces) const {
    return {0, elements / Line(elements, pieces) % pieces, pieces - 1};
  }
  // The unit of cuts, in elements: a cache line, or one element if there are fewer lines than pieces.
  int64_t Line(int64_t elements, int64_t pieces) const {
    return elements >= pieces * line_elements_ ? line_elements_ : 1;
  }

  int64_t elements_, element_bytes_, classes_, refinement_;
  int64_t line_elements_;
  int64_t most_part_ = 0;
  bool fits_ = true;
};

}  // namespace horocache::program
