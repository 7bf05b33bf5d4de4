// HC_SANITIZED is 1, and kSanitized true, if AddressSanitizer or ThreadSanitizer checks this build.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HC_SANITIZED 1
#elif defined(__has_feature)
#define HC_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define HC_SANITIZED 0
#endif

namespace horocache {

inline constexpr bool kSanitized = HC_SANITIZED != 0;

}  // namespace horocache
