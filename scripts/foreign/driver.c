/* A driver-API program against NVIDIA's own cuda.h, linked with -lcuda: what it asserts is what that header and the
 * driver's documentation say. Built and run by scripts/foreign-programs.sh; runs on a GPU as well. */
#include <cuda.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int passed, failed;

static void expect(int good, const char *what, int line) {
    if (good) {
        passed++;
    } else {
        failed++;
        fprintf(stderr, "line %d: %s\n", line, what);
    }
}

static const char *name_of(CUresult code) {
    const char *name = NULL;
    return cuGetErrorName(code, &name) == CUDA_SUCCESS ? name : "an unknown code";
}

#define EXPECT(condition) expect((condition), #condition, __LINE__)
#define OK(call)                                                                          \
    do {                                                                                  \
        CUresult code_ = (call);                                                          \
        expect(code_ == CUDA_SUCCESS, #call, __LINE__);                                   \
        if (code_ != CUDA_SUCCESS) fprintf(stderr, "  gave %s\n", name_of(code_));        \
    } while (0)
#define GIVES(wanted, call)                                                               \
    do {                                                                                  \
        CUresult code_ = (call);                                                          \
        expect(code_ == (wanted), #call " gives " #wanted, __LINE__);                     \
        if (code_ != (wanted)) fprintf(stderr, "  gave %s\n", name_of(code_));            \
    } while (0)

static const char PTX[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .u32 counter = 7;\n"
    ".visible .entry scale(.param .u64 data, .param .f32 factor, .param .u32 count) {\n"
    "  .reg .pred %p;\n  .reg .b32 %r<6>;\n  .reg .f32 %f<4>;\n  .reg .b64 %d<4>;\n"
    "  ld.param.u64 %d0, [data];\n  ld.param.f32 %f0, [factor];\n  ld.param.u32 %r0, [count];\n"
    "  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ntid.x;\n  mov.u32 %r3, %tid.x;\n"
    "  mad.lo.s32 %r4, %r1, %r2, %r3;\n  setp.ge.u32 %p, %r4, %r0;\n  @%p bra DONE;\n"
    "  mul.wide.u32 %d1, %r4, 4;\n  add.s64 %d2, %d0, %d1;\n"
    "  ld.global.f32 %f1, [%d2];\n  mul.f32 %f2, %f1, %f0;\n  st.global.f32 [%d2], %f2;\n"
    "DONE:\n  ret;\n}\n";

enum { COUNT = 1000 };
static CUdevice device;
static CUcontext context;
static CUmodule module;
static CUfunction scale;

static void fill(float *values) {
    for (int i = 0; i < COUNT; i++) values[i] = (float)i;
}

static int all_scaled(const float *values, float by) {
    for (int i = 0; i < COUNT; i++)
        if (values[i] != (float)i * by) return 0;
    return 1;
}

static void devices(void) {
    int version = 0, count = 0, value = 0;
    const char *text = NULL;
    char name[100], bus[32];
    size_t bytes = 0;
    CUuuid uuid;
    CUdevice same;
    OK(cuDriverGetVersion(&version));
    EXPECT(version >= 12000);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&count));
    OK(cuInit(0));
    OK(cuDeviceGetCount(&count));
    EXPECT(count >= 1);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(NULL));
    OK(cuDeviceGet(&device, 0));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&same, count));
    OK(cuDeviceGetName(name, sizeof name, device));
    OK(cuDeviceTotalMem(&bytes, device));
    EXPECT(bytes > 0);
    OK(cuDeviceGetUuid(&uuid, device));
    OK(cuDeviceGetPCIBusId(bus, sizeof bus, device));
    OK(cuDeviceGetByPCIBusId(&same, bus));
    EXPECT(same == device);
    /* The last that CUDA 13.0 has; a newer header's are for a newer driver to know. */
    for (int attribute = 1; attribute <= CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED; attribute++)
        if (cuDeviceGetAttribute(&value, (CUdevice_attribute)attribute, device) != CUDA_SUCCESS) {
            expect(0, "a device attribute has no value", __LINE__);
            fprintf(stderr, "  attribute %d\n", attribute);
        }
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    EXPECT(value == 32);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, (CUdevice_attribute)100000, device));
    OK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    EXPECT(!strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    EXPECT(!strcmp(text, "out of memory"));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)123456, &text));
    EXPECT(text == NULL);
}

static void loader(void) {
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    CUresult (*version_of)(int *) = NULL;
    int version = 0;
    OK(cuGetProcAddress("cuDriverGetVersion", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    EXPECT(status == CU_GET_PROC_ADDRESS_SUCCESS && found != NULL);
    memcpy(&version_of, &found, sizeof found);
    OK(version_of(&version));
    OK(cuGetProcAddress("cuGraphInstantiate", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    EXPECT(status == CU_GET_PROC_ADDRESS_SUCCESS);
    OK(cuGetProcAddress("cuNoSuchFunction", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    EXPECT(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND && found == NULL);
    OK(cuGetProcAddress("cuMemAdvise", &found, 7000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    EXPECT(status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

static void contexts(void) {
    CUcontext own = NULL, popped = NULL, current = NULL;
    CUdevice of = -1;
    unsigned int flags = 0, api = 0;
    unsigned long long id = 0;
    int active = 0, least = 1, greatest = 1;
    size_t limit = 0, available = 0, total = 0;
    CUdeviceptr pointer = 0;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc(&pointer, 16));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    EXPECT(active == 1);
    OK(cuCtxSetCurrent(context));
    OK(cuCtxGetDevice(&of));
    EXPECT(of == device);
    OK(cuCtxCreate(&own, NULL, CU_CTX_SCHED_BLOCKING_SYNC, device));
    OK(cuCtxGetCurrent(&current));
    EXPECT(current == own && own != context);
    OK(cuCtxGetFlags(&flags));
    EXPECT(flags == CU_CTX_SCHED_BLOCKING_SYNC);
    OK(cuCtxGetApiVersion(own, &api));
    OK(cuCtxGetId(own, &id));
    OK(cuMemAlloc(&pointer, 1 << 20));
    OK(cuCtxPopCurrent(&popped));
    EXPECT(popped == own);
    OK(cuCtxGetCurrent(&current));
    EXPECT(current == context);
    OK(cuCtxPushCurrent(own));
    OK(cuCtxDestroy(own));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSetCurrent(own));
    OK(cuCtxSetCurrent(context));
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    EXPECT(least == 0 && greatest < 0);
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    OK(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
    EXPECT(limit == 4096);
    OK(cuMemGetInfo(&available, &total));
    EXPECT(available > 0 && available < total);
}

static void modules(void) {
    char log[512] = "x";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)sizeof log};
    CUmodule bad = NULL;
    CUfunction none = NULL;
    CUlibrary library = NULL;
    CUkernel kernel = NULL;
    CUlinkState link = NULL;
    CUdeviceptr counter = 0;
    const char *name = NULL;
    void *image = NULL;
    size_t bytes = 0, offset = 0;
    unsigned int number = 0, read = 0;
    OK(cuModuleLoadData(&module, PTX));
    GIVES(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&bad, ".version 8.0\n.target sm_80\nnonsense;\n", 2, options, values));
    EXPECT(strlen(log) > 1);
    OK(cuModuleGetFunction(&scale, module, "scale"));
    GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&none, module, "scala"));
    OK(cuModuleGetFunctionCount(&number, module));
    EXPECT(number == 1);
    OK(cuModuleEnumerateFunctions(&none, 1, module));
    EXPECT(none == scale);
    OK(cuFuncGetName(&name, scale));
    EXPECT(!strcmp(name, "scale"));
    OK(cuFuncGetParamInfo(scale, 1, &offset, &bytes));
    EXPECT(offset == 8 && bytes == 4);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(scale, 3, &offset, &bytes));
    OK(cuModuleGetGlobal(&counter, &bytes, module, "counter"));
    EXPECT(bytes == 4);
    OK(cuMemcpyDtoH(&read, counter, 4));
    EXPECT(read == 7);

    OK(cuLibraryLoadData(&library, PTX, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&kernel, library, "scale"));
    OK(cuLibraryGetKernelCount(&number, library));
    EXPECT(number == 1);
    OK(cuKernelGetFunction(&none, kernel));
    OK(cuKernelGetName(&name, kernel));
    EXPECT(!strcmp(name, "scale"));
    OK(cuLibraryGetGlobal(&counter, &bytes, library, "counter"));
    OK(cuLibraryUnload(library));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(library));

    OK(cuLinkCreate(0, NULL, NULL, &link));
    OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, (void *)PTX, sizeof PTX, "scale", 0, NULL, NULL));
    OK(cuLinkComplete(link, &image, &bytes));
    OK(cuModuleLoadData(&bad, image));
    OK(cuModuleGetFunction(&none, bad, "scale"));
    OK(cuModuleUnload(bad));
    OK(cuLinkDestroy(link));
}

static void memory(void) {
    CUdeviceptr data = 0, copy = 0, base = 0, shared = 0;
    size_t pitch = 0, bytes = 0;
    unsigned char host[64 * 8], back[64 * 8];
    void *pinned = NULL;
    CUmemorytype type;
    int ordinal = -1;
    OK(cuMemAlloc(&data, 4096));
    OK(cuMemGetAddressRange(&base, &bytes, data + 100));
    EXPECT(base == data && bytes == 4096);
    OK(cuMemsetD16(data, 0x1234, 16));
    OK(cuMemcpyDtoH(host, data, 32));
    EXPECT(host[0] == 0x34 && host[31] == 0x12);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(data + 2, 0, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&copy, 0));
    OK(cuMemAllocPitch(&copy, &pitch, 48, 8, 4));
    EXPECT(pitch >= 48 && pitch % 32 == 0);
    for (int i = 0; i < 64 * 8; i++) host[i] = (unsigned char)i;
    CUDA_MEMCPY2D rect;
    memset(&rect, 0, sizeof rect);
    rect.srcMemoryType = CU_MEMORYTYPE_HOST, rect.srcHost = host, rect.srcPitch = 64;
    rect.dstMemoryType = CU_MEMORYTYPE_DEVICE, rect.dstDevice = copy, rect.dstPitch = pitch;
    rect.WidthInBytes = 48, rect.Height = 8;
    OK(cuMemcpy2D(&rect));
    OK(cuMemsetD2D8(copy + 8, pitch, 0xAB, 4, 8));
    memset(back, 0, sizeof back);
    memset(&rect, 0, sizeof rect);
    rect.srcMemoryType = CU_MEMORYTYPE_UNIFIED, rect.srcDevice = copy, rect.srcPitch = pitch;
    rect.dstMemoryType = CU_MEMORYTYPE_HOST, rect.dstHost = back, rect.dstPitch = 64, rect.dstXInBytes = 1;
    rect.WidthInBytes = 47, rect.Height = 8;
    OK(cuMemcpy2D(&rect));
    EXPECT(back[64 * 3 + 1] == host[64 * 3] && back[64 * 3 + 9] == 0xAB && back[64 * 3 + 13] == host[64 * 3 + 12]);
    OK(cuMemHostAlloc(&pinned, 4096, CU_MEMHOSTALLOC_PORTABLE));
    memset(pinned, 5, 4096);
    OK(cuMemcpy(data, (CUdeviceptr)pinned, 4096));
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pinned));
    EXPECT(type == CU_MEMORYTYPE_HOST);
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, data));
    EXPECT(ordinal == device);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)host));
    OK(cuMemHostRegister(host, sizeof host, 0));
    GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(host + 8, 8, 0));
    OK(cuMemHostUnregister(host));
    GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(host));
    OK(cuMemAllocManaged(&shared, 4096, CU_MEM_ATTACH_GLOBAL));
    memset((void *)shared, 3, 4096);
    OK(cuMemcpyDtoD(data, shared, 16));
    OK(cuMemcpyDtoH(back, data, 16));
    EXPECT(back[15] == 3);
    OK(cuMemFree(shared));
    OK(cuMemFreeHost(pinned));
    OK(cuMemFree(copy));
    OK(cuMemFree(data));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(data));
}

static void CUDA_CB count_call(void *counter) { ++*(int *)counter; }

static void streams(void) {
    CUstream first, second;
    CUevent start, end;
    CUdeviceptr data = 0, flag = 0, pooled = 0;
    static float values[COUNT];
    float factor = 2.0f, milliseconds = -1.0f;
    unsigned int count = COUNT, one = 1;
    int calls = 0, priority = 1;
    void *params[] = {&data, &factor, &count};
    fill(values);
    OK(cuStreamCreateWithPriority(&first, CU_STREAM_NON_BLOCKING, -1));
    OK(cuStreamGetPriority(first, &priority));
    EXPECT(priority == -1);
    OK(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&start, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    OK(cuMemAlloc(&data, sizeof values));
    OK(cuMemAlloc(&flag, 4));
    OK(cuMemsetD32(flag, 0, 1));
    OK(cuMemcpyHtoDAsync(data, values, sizeof values, first));
    OK(cuEventRecord(start, first));
    OK(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, first, params, NULL));
    OK(cuLaunchHostFunc(first, count_call, &calls));
    OK(cuEventRecord(end, first));
    OK(cuStreamWaitEvent(second, end, 0));
    CUlaunchAttribute attribute;
    memset(&attribute, 0, sizeof attribute);
    attribute.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config;
    memset(&config, 0, sizeof config);
    config.gridDimX = 4, config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 256, config.blockDimY = config.blockDimZ = 1;
    config.hStream = second, config.attrs = &attribute, config.numAttrs = 1;
    OK(cuLaunchKernelEx(&config, scale, params, NULL));
    OK(cuStreamWaitValue32(second, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemcpyDtoHAsync(values, data, 4, first));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(second));
    OK(cuStreamWriteValue32(first, flag, one, 0));
    OK(cuStreamSynchronize(first));
    OK(cuStreamSynchronize(second));
    OK(cuMemcpyDtoH(values, data, sizeof values));
    EXPECT(all_scaled(values, 4.0f));
    EXPECT(calls == 1);
    OK(cuEventElapsedTime(&milliseconds, start, end));
    EXPECT(milliseconds >= 0.0f);
    OK(cuMemAllocAsync(&pooled, 1024, first));
    OK(cuMemsetD8Async(pooled, 1, 1024, first));
    OK(cuMemFreeAsync(pooled, first));
    OK(cuStreamSynchronize(first));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(scale, 1, 1, 1, 2048, 1, 1, 0, first, params, NULL));
    OK(cuMemFree(flag));
    OK(cuMemFree(data));
    OK(cuEventDestroy(start));
    OK(cuEventDestroy(end));
    OK(cuStreamDestroy(first));
    OK(cuStreamDestroy(second));
}

static void graphs(void) {
    CUstream main_stream, side;
    CUevent fork_event, join_event;
    CUgraph captured, built, clone;
    CUgraphExec exec;
    CUgraphNode nodes[8], fill_node, kernel_node, host_node;
    CUgraphNodeType type;
    CUdeviceptr data = 0;
    static float values[COUNT];
    float factor = 3.0f;
    unsigned int count = COUNT;
    size_t number = 8;
    int calls = 0;
    void *params[] = {&data, &factor, &count};
    OK(cuStreamCreate(&main_stream, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&fork_event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&join_event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc(&data, sizeof values));
    OK(cuStreamBeginCapture(main_stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    OK(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, main_stream, params, NULL));
    OK(cuEventRecord(fork_event, main_stream));
    OK(cuStreamWaitEvent(side, fork_event, 0));
    OK(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, side, params, NULL));
    OK(cuEventRecord(join_event, side));
    OK(cuStreamWaitEvent(main_stream, join_event, 0));
    OK(cuStreamEndCapture(main_stream, &captured));
    OK(cuGraphGetNodes(captured, nodes, &number));
    EXPECT(number == 2);
    OK(cuGraphNodeGetType(nodes[0], &type));
    EXPECT(type == CU_GRAPH_NODE_TYPE_KERNEL);
    CUDA_KERNEL_NODE_PARAMS kernel;
    OK(cuGraphKernelNodeGetParams(nodes[0], &kernel));
    EXPECT(kernel.func == scale && kernel.blockDimX == 256 && *(float *)kernel.kernelParams[1] == 3.0f);
    OK(cuGraphInstantiate(&exec, captured, 0));
    fill(values);
    OK(cuMemcpyHtoD(data, values, sizeof values));
    OK(cuGraphLaunch(exec, main_stream));
    OK(cuStreamSynchronize(main_stream));
    OK(cuMemcpyDtoH(values, data, sizeof values));
    EXPECT(all_scaled(values, 9.0f));
    factor = 1.0f;
    OK(cuGraphExecKernelNodeSetParams(exec, nodes[0], &(CUDA_KERNEL_NODE_PARAMS){
        .func = scale, .gridDimX = 4, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 256, .blockDimY = 1, .blockDimZ = 1,
        .kernelParams = params}));
    OK(cuMemcpyHtoD(data, (fill(values), values), sizeof values));
    OK(cuGraphLaunch(exec, main_stream));
    OK(cuMemcpyDtoHAsync(values, data, sizeof values, main_stream));
    OK(cuStreamSynchronize(main_stream));
    EXPECT(all_scaled(values, 3.0f));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(captured));

    OK(cuGraphCreate(&built, 0));
    CUDA_MEMSET_NODE_PARAMS zero = {.dst = data, .value = 0x3f800000, .elementSize = 4, .width = COUNT, .height = 1};
    OK(cuGraphAddMemsetNode(&fill_node, built, NULL, 0, &zero, context));
    factor = 5.0f;
    kernel.func = scale, kernel.kernelParams = params, kernel.extra = NULL;
    OK(cuGraphAddKernelNode(&kernel_node, built, &fill_node, 1, &kernel));
    CUDA_HOST_NODE_PARAMS host = {.fn = count_call, .userData = &calls};
    OK(cuGraphAddHostNode(&host_node, built, &kernel_node, 1, &host));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(built, &host_node, &fill_node, NULL, 1));
    number = 0;
    OK(cuGraphGetEdges(built, NULL, NULL, NULL, &number));
    EXPECT(number == 2);
    OK(cuGraphClone(&clone, built));
    OK(cuGraphNodeFindInClone(&nodes[0], kernel_node, clone));
    EXPECT(nodes[0] != kernel_node);
    OK(cuGraphInstantiate(&exec, clone, 0));
    OK(cuGraphLaunch(exec, main_stream));
    OK(cuStreamSynchronize(main_stream));
    OK(cuMemcpyDtoH(values, data, sizeof values));
    EXPECT(values[0] == 5.0f && values[COUNT - 1] == 5.0f && calls == 1);
    CUgraphExecUpdateResultInfo info;
    memset(&info, 0, sizeof info);
    OK(cuGraphExecUpdate(exec, built, &info));
    EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
    OK(cuGraphDestroyNode(host_node));
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, built, &info));
    EXPECT(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(clone));
    OK(cuGraphDestroy(built));
    OK(cuMemFree(data));
}

/* Sends a descriptor to another process, which must see the memory. */
static void send_descriptor(int socket, int descriptor) {
    char byte = 0, room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    EXPECT(sendmsg(socket, &message, 0) == 1);
}

static int receive_descriptor(int socket) {
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    int descriptor = -1;
    if (recvmsg(socket, &message, 0) == 1) memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

static CUmemAllocationProp sharable(void) {
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
}

static CUdeviceptr mapped(CUmemGenericAllocationHandle handle, size_t bytes) {
    CUdeviceptr address = 0;
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    OK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    OK(cuMemMap(address, bytes, 0, handle, 0));
    OK(cuMemSetAccess(address, bytes, &access, 1));
    return address;
}

static void sharing(int socket) {
    size_t grain = 0;
    unsigned int value = 0;
    int descriptor = -1;
    CUmemAllocationProp properties = sharable(), back;
    CUmemGenericAllocationHandle handle, again;
    OK(cuMemGetAllocationGranularity(&grain, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemCreate(&handle, 2 * grain, &properties, 0));
    OK(cuMemGetAllocationPropertiesFromHandle(&back, handle));
    EXPECT(back.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    CUdeviceptr address = mapped(handle, 2 * grain);
    OK(cuMemRetainAllocationHandle(&again, (void *)address));
    EXPECT(again == handle);
    OK(cuMemRelease(again));
    OK(cuMemsetD32(address, 41, 16));
    OK(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    send_descriptor(socket, descriptor);
    close(descriptor);
    char done;
    EXPECT(read(socket, &done, 1) == 1);
    OK(cuMemcpyDtoH(&value, address + 4, 4));
    EXPECT(value == 42);
    OK(cuMemUnmap(address, 2 * grain));
    OK(cuMemAddressFree(address, 2 * grain));
    OK(cuMemRelease(handle));
}

/* The other process: adds one to the second word of what it is sent. */
static int other_process(int socket) {
    int descriptor = receive_descriptor(socket);
    size_t grain = 0;
    unsigned int value = 0;
    CUmemAllocationProp properties = sharable();
    CUmemGenericAllocationHandle handle;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuMemGetAllocationGranularity(&grain, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    OK(cuMemImportFromShareableHandle(&handle, (void *)(long)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    CUdeviceptr address = mapped(handle, 2 * grain);
    OK(cuMemcpyDtoH(&value, address + 4, 4));
    value++;
    OK(cuMemcpyHtoD(address + 4, &value, 4));
    EXPECT(write(socket, "x", 1) == 1);
    return failed ? 1 : 0;
}

static void occupancy(void) {
    int blocks = 0, grid = 0, block = 0;
    size_t bytes = 0;
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale, 256, 0));
    EXPECT(blocks >= 1 && blocks <= 8);
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, scale, NULL, 0, 0));
    EXPECT(grid >= 1 && block >= 32 && block <= 1024);
    OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, scale, 1, 256));
    EXPECT(bytes >= 48 << 10);
}

static void misuse(void) {
    CUarray array = NULL;
    CUDA_ARRAY_DESCRIPTOR descriptor = {16, 16, CU_AD_FORMAT_FLOAT, 1};
    CUdeviceptr bad = 0;
    float factor = 1.0f;
    unsigned int count = COUNT;
    void *params[] = {&bad, &factor, &count};
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize((CUstream)0x1234567));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload((CUmodule)&bad));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, NULL));
    CUresult arrays = cuArrayCreate(&array, &descriptor);
    EXPECT(arrays == CUDA_ERROR_NOT_SUPPORTED || arrays == CUDA_SUCCESS);
    /* Ends the context's life: every later call says so. */
    OK(cuLaunchKernel(scale, 4, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&bad, 16));
    cuDevicePrimaryCtxReset(device);
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc(&bad, 16));
    OK(cuMemFree(bad));
}

int main(void) {
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets)) return 2;
    pid_t child = fork();
    if (child == 0) {
        close(sockets[0]);
        return other_process(sockets[1]);
    }
    close(sockets[1]);
    devices();
    loader();
    contexts();
    modules();
    memory();
    streams();
    graphs();
    occupancy();
    sharing(sockets[0]);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    misuse();
    printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
