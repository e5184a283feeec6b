/* SPDX-License-Identifier: BSD-3-Clause
 * The C interface as a Swift module. The include path is that of the installed package or of a checkout.
 */
#include "torchette/extension/c_api.h"
