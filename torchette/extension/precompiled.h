// SPDX-License-Identifier: BSD-3-Clause
// The precompiled header of extension/: headers of the C++ library that most of its sources include.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>
