// SPDX-License-Identifier: BSD-3-Clause
// Headers of C++'s library that most sources of extension/ include, parsed once for all of them.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>
