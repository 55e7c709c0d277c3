# How native code is compiled, for the addon of this package and for that of packages/bench, which compiles the same
# sources. Included by a Makefile that sets BUILD; objects of this folder lie in $(BUILD), by layer.
#
# Every instruction set is one unit with its own flags. Units include no header of the standard library that defines
# inline functions: the linker keeps one copy of such a function, and it could be one that the CPU cannot run.
NATIVE := $(dir $(lastword $(MAKEFILE_LIST)))
NAPI ?= $(shell node -p "require('path').dirname(require.resolve('node-addon-api/package.json', {paths: ['$(NATIVE)']}))" 2>/dev/null)
NODE_API ?= $(shell node -p "require(require.resolve('node-api-headers', {paths: ['$(NATIVE)']})).include_dir" 2>/dev/null)

CXX ?= g++
OPT ?= $(if $(SAN),-O1 -g -fno-omit-frame-pointer,-O3)
CXXFLAGS += -std=c++20 $(OPT) -fPIC -fvisibility=hidden -Wall -Wextra -ffp-contract=off -fno-math-errno -pthread -MMD -MP
CXXFLAGS += $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)
LDFLAGS += -pthread $(if $(SAN),-fsanitize=$(SAN))
# Errors that cannot be thrown because their environment is ending are dropped; the default is to end the process.
ADDON_FLAGS = -isystem '$(NAPI)' -isystem '$(NODE_API)' -DNAPI_VERSION=8 -DNAPI_CPP_EXCEPTIONS \
  -DNODE_ADDON_API_DISABLE_DEPRECATED -DNODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS

TARGET := $(shell $(CXX) -dumpmachine)
ARCH := $(firstword $(subst -, ,$(TARGET)))
ifneq ($(filter x86_64 amd64,$(ARCH)),)
  SETS := sse41 avx2 avx_vnni avx512 avx512_vnni
else ifneq ($(filter aarch64 arm64,$(ARCH)),)
  SETS := neon
endif

AVX512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c
FLAGS_sse41 := -msse4.1 -mavx
FLAGS_avx2 := -mavx2 -mfma -mf16c
FLAGS_avx_vnni := $(FLAGS_avx2) $(if $(VNNI),-mavx512vl -mavx512vnni,-mavxvnni)
FLAGS_avx512 := $(AVX512)
FLAGS_avx512_vnni := $(AVX512) -mavx512vnni
FLAGS_neon :=

# Objects of a layer, except kernels, whose units depend on the CPU.
objects = $(patsubst $(NATIVE)%.cpp,$(BUILD)/%.o,$(wildcard $(NATIVE)$(1)/*.cpp))
KERNELS := $(SETS:%=$(BUILD)/kernels/%.o) $(BUILD)/kernels/scalar.o $(BUILD)/kernels/select.o

# nodelete: a handler of SIGBUS must not be unmapped with the worker that alone had loaded the addon.
SHARED := $(if $(findstring darwin,$(TARGET)),-bundle -undefined dynamic_lookup,-shared -Wl,-z,nodelete)
# Written under another name and renamed: a failed or interrupted build leaves no half of an addon.
link_addon = $(CXX) $(SHARED) $^ $(LDFLAGS) -o $@.partial && mv $@.partial $@

$(BUILD)/addon/%.o: CXXFLAGS += $(ADDON_FLAGS)
$(foreach set,$(SETS),$(eval $(BUILD)/kernels/$(set).o: CXXFLAGS += $(FLAGS_$(set))))
$(BUILD)/kernels/select.o: CXXFLAGS += $(SETS:%=-DCFLOW_HAS_%) $(if $(VNNI),-DCFLOW_VNNI_EVEX)

$(BUILD)/%.o: $(NATIVE)%.cpp $(MAKEFILE_LIST)
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS) -c $< -o $@

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
