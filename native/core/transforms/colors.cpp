// Compiled once per instruction set, like rows.cpp, and without other headers for the same reason.
#include "colors.hpp"

#include "streaming.hpp"

#define FORELOAD_NAME2(isa) color_kernels_##isa
#define FORELOAD_NAME(isa) FORELOAD_NAME2(isa)

namespace foreload {

namespace {

// The larger and the smaller, in a form that compilers turn into one instruction.
inline int16_t larger(int16_t a, int16_t b) {
  return a > b ? a : b;
}
inline int16_t smaller(int16_t a, int16_t b) {
  return a < b ? a : b;
}
// Sums and differences in 16 bits, which hold them: see the comments below.
inline int16_t sum(int16_t a, int16_t b) {
  return static_cast<int16_t>(static_cast<uint16_t>(a) + static_cast<uint16_t>(b));
}
inline int16_t difference(int16_t a, int16_t b) {
  return static_cast<int16_t>(static_cast<uint16_t>(a) - static_cast<uint16_t>(b));
}
inline int16_t clamp(int16_t value, int16_t most) {
  return smaller(larger(value, 0), most);
}

// a * b / 2^15, rounded.
inline int16_t product(int16_t a, int16_t b) {
  return static_cast<int16_t>((((static_cast<int32_t>(a) * b) >> 14) + 1) >> 1);
}

// A byte has 7 bits of fraction here, so that its product with a factor in fractions of 2^(bits + 8) is in
// fractions of 2^bits.
constexpr int kByteBits = 7;

inline int16_t fraction(float value, int bits) {
  const float scaled = value * static_cast<float>(1 << bits);
  return static_cast<int16_t>(scaled < 0 ? scaled - 0.5F : scaled + 0.5F);
}

// A factor as an integer, with as many bits of fraction as products with bytes have room for.
struct Factor {
  explicit Factor(float value) {
    // From 64 on, the products of 4 and more are 255 all the same.
    const float factor = value < 63 ? value : 63;
    int bits = kByteBits;
    while ((factor > 1 ? factor : 1) * static_cast<float>(1 << (bits + 8)) > 32767) --bits;
    number = fraction(factor, bits + 8);
    rest = fraction(1 - factor, bits + 8);
    whole = static_cast<int16_t>(1 << (15 - bits));
    blends = factor >= 0 && factor <= 1;
  }

  int16_t number = 0, rest = 0;  // the factor, and 1 less the factor
  int16_t whole = 0;             // the product with it is the nearest whole number
  bool blends = false;           // what it makes of two bytes lies between them
};

// So many pixels are kept as 16-bit numbers through all steps, in the first-level cache.
constexpr size_t kChunk = 1024;

struct Pixels {
  alignas(64) int16_t red[kChunk];
  alignas(64) int16_t green[kChunk];
  alignas(64) int16_t blue[kChunk];
  alignas(64) int16_t grey[kChunk];
};

void load(const uint8_t* __restrict from, size_t count, int16_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<int16_t>(from[i] << kByteBits);
}

void store(const int16_t* __restrict from, size_t count, uint8_t* __restrict to) {
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(from[i] >> kByteBits);
}

void store(const int16_t* __restrict from, size_t count, float scale, float bias, bool streams,
           float* __restrict out) {
  alignas(64) float part[kChunk];
  float* __restrict const to = streams ? part : out;
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i] >> kByteBits) * scale + bias;
  if (streams) stream(part, count, out);
}

// The byte factor * value + bias. The sum is at most 255 * factor in size, since a bias moves towards a value
// from 0 to 255; a factor that blends needs no clamp.
template <bool blends>
inline int16_t scaled(int16_t value, int16_t number, int16_t bias, int16_t whole) {
  const int16_t nearest = product(sum(product(value, number), bias), whole);
  return static_cast<int16_t>((blends ? nearest : clamp(nearest, 255)) << kByteBits);
}

template <bool blends>
void scale(int16_t* values, size_t count, const Factor factor, int16_t bias) {
  for (size_t i = 0; i < count; ++i) values[i] = scaled<blends>(values[i], factor.number, bias, factor.whole);
}

inline uint16_t part(int16_t value, uint16_t weight) {
  return static_cast<uint16_t>((static_cast<uint32_t>(static_cast<uint16_t>(value << 1)) * weight) >> 16);
}

inline int16_t grey(int16_t red, int16_t green, int16_t blue) {
  // 0.299, 0.587 and 0.114 of 2^16
  const auto twice = static_cast<uint16_t>(part(red, 19595) + part(green, 38470) + part(blue, 7471));
  return static_cast<int16_t>(twice >> 1);
}

template <bool blends>
void saturate(Pixels& pixels, size_t count, const Factor factor) {
  // Apart from the rest, since compilers that see that a grey is never negative multiply it in 32 bits.
  for (size_t i = 0; i < count; ++i) pixels.grey[i] = grey(pixels.red[i], pixels.green[i], pixels.blue[i]);
  for (size_t i = 0; i < count; ++i) {
    const int16_t bias = product(pixels.grey[i], factor.rest);
    pixels.red[i] = scaled<blends>(pixels.red[i], factor.number, bias, factor.whole);
    pixels.green[i] = scaled<blends>(pixels.green[i], factor.number, bias, factor.whole);
    pixels.blue[i] = scaled<blends>(pixels.blue[i], factor.number, bias, factor.whole);
  }
}

// Numbers of the hue have so many bits of fraction: six times the largest chroma fits.
constexpr int kHueBits = 4;

// A value less what its colour lacks of the largest one, at most the chroma; a byte.
inline int16_t less(int16_t value, int16_t lacks, int16_t chroma) {
  constexpr int16_t kHalf = 1 << (kHueBits - 1);
  const int16_t whole = static_cast<int16_t>(sum(difference(value, clamp(lacks, chroma)), kHalf) >> kHueBits);
  return static_cast<int16_t>(whole << kByteBits);
}

inline int16_t size(int16_t value) {
  return larger(value, difference(0, value));
}

// By the usual formulas, with all that is divided by the chroma multiplied by it instead.
void turn(Pixels& pixels, size_t count, float by) {
  constexpr int kFewer = kByteBits - kHueBits;
  const int16_t sixths = fraction(6 * by, 15 - kFewer);
  for (size_t i = 0; i < count; ++i) {
    const auto r = static_cast<int16_t>(pixels.red[i] >> kFewer);
    const auto g = static_cast<int16_t>(pixels.green[i] >> kFewer);
    const auto b = static_cast<int16_t>(pixels.blue[i] >> kFewer);
    const int16_t value = larger(r, larger(g, b));
    const int16_t chroma = difference(value, smaller(r, smaller(g, b)));
    const int16_t two = sum(chroma, chroma), three = sum(two, chroma), six = sum(three, three);
    const int16_t near_red = difference(g, b);
    const int16_t near_green = sum(difference(b, r), two), near_blue = difference(difference(r, g), two);
    // The hue in sixths of a circle from red, which is -6 to 6, and then -3 to 3.
    const int16_t near = value == r ? near_red : value == g ? near_green : near_blue;
    const int16_t turned = sum(near, product(static_cast<int16_t>(chroma << kFewer), sixths));
    const int16_t below = turned > three ? difference(turned, six) : turned;
    const int16_t hue = below < difference(0, three) ? sum(below, six) : below;
    pixels.red[i] = less(value, difference(size(hue), chroma), chroma);
    pixels.green[i] = less(value, difference(two, size(sum(hue, chroma))), chroma);
    pixels.blue[i] = less(value, difference(two, size(difference(hue, chroma))), chroma);
  }
}

template <bool blends>
void take(const ColorStep& step, Pixels& pixels, size_t count, const Factor factor) {
  if (step.change == ColorChange::saturate) return saturate<blends>(pixels, count, factor);
  const int16_t bias = product(static_cast<int16_t>(step.mean << kByteBits), factor.rest);
  scale<blends>(pixels.red, count, factor, bias);
  scale<blends>(pixels.green, count, factor, bias);
  scale<blends>(pixels.blue, count, factor, bias);
}

void take(const ColorStep& step, Pixels& pixels, size_t count) {
  if (step.change == ColorChange::turn) return turn(pixels, count, step.factor);
  const Factor factor(step.factor);
  factor.blends ? take<true>(step, pixels, count, factor) : take<false>(step, pixels, count, factor);
}

void change(uint8_t* red, uint8_t* green, uint8_t* blue, size_t count, const ColorStep* steps,
            size_t steps_count, const ColorFloats* floats) {
  Pixels pixels;
  const bool streams = count * sizeof(float) >= kStreamedBytes;
  for (size_t start = 0; start < count; start += kChunk) {
    const size_t here = count - start < kChunk ? count - start : kChunk;
    uint8_t *const r = red + start, *const g = green + start, *const b = blue + start;
    load(r, here, pixels.red);
    load(g, here, pixels.green);
    load(b, here, pixels.blue);
    for (const ColorStep* step = steps; step != steps + steps_count; ++step) take(*step, pixels, here);
    if (floats == nullptr) {
      store(pixels.red, here, r);
      store(pixels.green, here, g);
      store(pixels.blue, here, b);
    } else {
      float* const out = floats->out + start;
      store(pixels.red, here, floats->scale[0], floats->bias[0], streams, out);
      store(pixels.green, here, floats->scale[1], floats->bias[1], streams, out + count);
      store(pixels.blue, here, floats->scale[2], floats->bias[2], streams, out + 2 * count);
    }
  }
  if (floats != nullptr && streams) end_streaming();
}

uint64_t total(const uint8_t* values, size_t count) {
  // 64 sums side by side, of so few bytes that 16 bits hold them.
  constexpr size_t kSums = 64, kRounds = 257;
  uint64_t all = 0;
  size_t i = 0;
  while (count - i >= kSums) {
    alignas(64) uint16_t sums[kSums] = {};
    const size_t rounds = (count - i) / kSums < kRounds ? (count - i) / kSums : kRounds;
    for (size_t round = 0; round < rounds; ++round, i += kSums) {
      for (size_t j = 0; j < kSums; ++j) sums[j] = static_cast<uint16_t>(sums[j] + values[i + j]);
    }
    for (const uint16_t part : sums) all += part;
  }
  for (; i < count; ++i) all += values[i];
  return all;
}

double luma(const uint8_t* red, const uint8_t* green, const uint8_t* blue, size_t count) {
  return static_cast<double>(299 * total(red, count) + 587 * total(green, count) + 114 * total(blue, count)) /
         1000.0;
}

// Pixels come in pairs, which share a colour; so many pairs are handled at a time.
constexpr size_t kPairs = 32;

// Calls work(begin, count) for blocks of a length that compilers know, so that they need no code for what is
// left over; the last one overlaps the one before. Fewer elements than a block are one of their own.
template <typename Work>
inline void in_blocks(size_t count, Work work) {
  if (count < kPairs) return work(0, count);
  for (size_t begin = 0; begin + kPairs <= count; begin += kPairs) work(begin, kPairs);
  if (count % kPairs != 0) work(count - kPairs, kPairs);
}

void mix(const uint8_t* __restrict near, const uint8_t* __restrict far, size_t count,
         uint16_t* __restrict sums) {
  in_blocks(count, [&](size_t begin, size_t size) {
    for (size_t i = begin; i < begin + size; ++i) sums[i] = static_cast<uint16_t>(3 * near[i] + far[i]);
  });
}

// The upper and the lower 16 bits of a * b.
inline int16_t upper(int16_t a, int16_t b) {
  return static_cast<int16_t>((static_cast<int32_t>(a) * b) >> 16);
}
inline uint16_t lower(int16_t a, int16_t b) {
  return static_cast<uint16_t>(static_cast<uint32_t>(static_cast<uint16_t>(a)) * static_cast<uint16_t>(b));
}

// What the colours, of which 128 is grey, add to the luma: the factors are 91881, -22554, -46802 and 116130
// of 2^16. In 16 bits, 91881 is 26345 + 2^16, 116130 is 2 * 2^16 - 14942, and -46802 is 18734 - 2^16.
// (product() is of 2^15, and that half of 26345 is rounded changes none with a byte.)
struct Parts {
  int16_t of_red = hidden(13173), of_blue = hidden(-7471);

  int16_t red(int16_t, int16_t red) const { return sum(red, product(red, of_red)); }
  int16_t green(int16_t blue, int16_t red) const {
    constexpr int16_t kBlue = -22554, kRed = 18734;
    // Both lower halves are even.
    const uint16_t low = lower(blue, kBlue), other = lower(red, kRed);
    const auto half = static_cast<uint16_t>((static_cast<uint32_t>(low) + other + 1) >> 1);
    const auto carry = static_cast<int16_t>(static_cast<uint16_t>((half >> 1) + (1 << 13)) >> 14);
    return difference(sum(sum(upper(blue, kBlue), upper(red, kRed)), carry), red);
  }
  int16_t blue(int16_t blue, int16_t) const { return sum(sum(blue, blue), product(blue, of_blue)); }

  // Compilers multiply by a number that they know in 32 bits.
  static int16_t hidden(int16_t number) {
    asm("" : "+r"(number));
    return number;
  }
};

// A colour of the pixels of pairs, less 128. Two bytes in memory are the lower and the upper half of a
// number.
struct Pairs {
  alignas(64) int16_t low[kPairs];
  alignas(64) int16_t high[kPairs];
};

inline void spread(const uint16_t* sums, size_t count, Pairs& pairs) {
  const uint16_t* const before = sums - 1;
  const uint16_t* const after = sums + 1;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
  int16_t *const left = pairs.low, *const right = pairs.high;
#else
  int16_t *const left = pairs.high, *const right = pairs.low;
#endif
  for (size_t i = 0; i < count; ++i) {
    const auto three = static_cast<uint16_t>(3 * sums[i]);
    left[i] = difference(static_cast<int16_t>(static_cast<uint16_t>(three + before[i] + 8) >> 4), 128);
    right[i] = difference(static_cast<int16_t>(static_cast<uint16_t>(three + after[i] + 7) >> 4), 128);
  }
}

// The pixels of a pair are the halves of one number in memory: nothing is widened, shuffled or packed.
template <int16_t (Parts::*part)(int16_t, int16_t) const>
inline void add_part(const Parts parts, const uint8_t* __restrict luma, const Pairs& blue, const Pairs& red,
                     size_t count, uint8_t* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t pair;
    __builtin_memcpy(&pair, luma + 2 * i, sizeof(pair));
    const int16_t low =
        clamp(sum(static_cast<int16_t>(pair & 255), (parts.*part)(blue.low[i], red.low[i])), 255);
    const int16_t high =
        clamp(sum(static_cast<int16_t>(pair >> 8), (parts.*part)(blue.high[i], red.high[i])), 255);
    const auto both = static_cast<uint16_t>(low | static_cast<uint16_t>(high << 8));
    __builtin_memcpy(out + 2 * i, &both, sizeof(both));
  }
}

void to_planes(const uint8_t* luma, const uint16_t* blue, const uint16_t* red, size_t count, uint8_t* out,
               size_t plane) {
  const Parts parts;
  in_blocks(count, [&](size_t begin, size_t size) {
    Pairs blues, reds;
    spread(blue + begin, size, blues);
    spread(red + begin, size, reds);
    const uint8_t* const from = luma + 2 * begin;
    uint8_t* const to = out + 2 * begin;
    add_part<&Parts::red>(parts, from, blues, reds, size, to);
    add_part<&Parts::green>(parts, from, blues, reds, size, to + plane);
    add_part<&Parts::blue>(parts, from, blues, reds, size, to + 2 * plane);
  });
}

void pack(const uint8_t* __restrict planes, size_t plane, size_t count, uint8_t* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    for (size_t color = 0; color < 3; ++color) out[3 * i + color] = planes[color * plane + i];
  }
}

}  // namespace

extern const ColorKernels FORELOAD_NAME(FORELOAD_ISA);
const ColorKernels FORELOAD_NAME(FORELOAD_ISA) = {change, luma, mix, to_planes, pack};

}  // namespace foreload
