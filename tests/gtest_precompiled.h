// For tests, what common/core/precompiled.h is for all sources.
#include <gtest/gtest.h>

#include "core/precompiled.h"
