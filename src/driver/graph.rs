//! Captured graphs and their executable form.

use std::ffi::c_void;

use cuda_driver_sys::{CUgraph, CUgraphExec, CUgraphNode};

use super::module::{function_name, param_bytes};
use super::{Context, DriverError, Stream, abi};

/// What a graph node does, as NVIDIA numbers it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeKind(pub u32);

impl NodeKind {
    /// A kernel launch.
    pub const KERNEL: NodeKind = NodeKind(abi::CU_GRAPH_NODE_TYPE_KERNEL);
    /// A copy.
    pub const MEMCPY: NodeKind = NodeKind(abi::CU_GRAPH_NODE_TYPE_MEMCPY);
    /// A fill.
    pub const MEMSET: NodeKind = NodeKind(abi::CU_GRAPH_NODE_TYPE_MEMSET);
    /// A nested graph.
    pub const GRAPH: NodeKind = NodeKind(abi::CU_GRAPH_NODE_TYPE_GRAPH);
    /// Nothing but order.
    pub const EMPTY: NodeKind = NodeKind(abi::CU_GRAPH_NODE_TYPE_EMPTY);
}

/// One kernel node of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelNode {
    /// The kernel's name, where the driver can tell (CUDA 12.3 and newer).
    pub name: Option<String>,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// The captured parameters at their offsets; empty where the driver cannot tell their size
    /// (before CUDA 12.4).
    pub params: Vec<u8>,
}

/// A captured graph. NVIDIA: graph objects are not internally synchronised, so the handle is not `Sync`.
#[derive(Debug)]
pub struct Graph {
    context: Context,
    raw: CUgraph,
}

// SAFETY: NVIDIA allows use from any thread, one at a time, which is what `Send` without `Sync` says.
unsafe impl Send for Graph {}

impl Graph {
    /// Takes ownership of a graph made by a capture.
    pub(super) fn from_raw(context: &Context, raw: CUgraph) -> Graph {
        Graph {
            context: context.clone(),
            raw,
        }
    }

    /// Makes the graph executable. This may take device memory.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuGraphInstantiateWithFlags` returns.
    pub fn instantiate(&self) -> Result<GraphExec, DriverError> {
        let api = self.context.enter("cuGraphInstantiateWithFlags")?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph is alive and the pointer is to a live local.
        let result = unsafe { (api.cu_graph_instantiate_with_flags)(&mut raw, self.raw, 0) };
        self.context
            .check("cuGraphInstantiateWithFlags", result, String::new)?;
        Ok(GraphExec {
            context: self.context.clone(),
            raw,
        })
    }

    /// Number of nodes.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuGraphGetNodes` returns.
    pub fn node_count(&self) -> Result<usize, DriverError> {
        let api = self.context.enter("cuGraphGetNodes")?;
        let mut count = 0usize;
        // SAFETY: the graph is alive; a null array asks for the count alone.
        let result =
            unsafe { (api.cu_graph_get_nodes)(self.raw, std::ptr::null_mut(), &mut count) };
        self.context.check("cuGraphGetNodes", result, String::new)?;
        Ok(count)
    }

    /// The kind of every node, in the driver's order.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever the driver returns.
    pub fn node_kinds(&self) -> Result<Vec<NodeKind>, DriverError> {
        Ok(self.nodes()?.into_iter().map(|(_, kind)| kind).collect())
    }

    /// Every kernel node with its captured parameters.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever the driver returns.
    pub fn kernel_nodes(&self) -> Result<Vec<KernelNode>, DriverError> {
        self.nodes()?
            .into_iter()
            .filter(|&(_, kind)| kind == NodeKind::KERNEL)
            .map(|(node, _)| self.kernel_node(node))
            .collect()
    }

    /// Destroys the graph and reports what `Drop` would only record. Executable forms stay valid.
    ///
    /// # Errors
    /// Whatever `cuGraphDestroy` returns.
    pub fn close(mut self) -> Result<(), DriverError> {
        self.destroy()
    }

    fn nodes(&self) -> Result<Vec<(CUgraphNode, NodeKind)>, DriverError> {
        let mut count = self.node_count()?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        let api = self.context.enter("cuGraphGetNodes")?;
        if count > 0 {
            // SAFETY: the graph is alive and the array has `count` elements.
            let result =
                unsafe { (api.cu_graph_get_nodes)(self.raw, nodes.as_mut_ptr(), &mut count) };
            self.context.check("cuGraphGetNodes", result, String::new)?;
        }
        nodes
            .into_iter()
            .map(|node| {
                let mut kind = 0;
                // SAFETY: the node belongs to a live graph and the pointer is to a live local.
                let result = unsafe { (api.cu_graph_node_get_type)(node, &mut kind) };
                self.context
                    .check("cuGraphNodeGetType", result, String::new)?;
                Ok((node, NodeKind(kind)))
            })
            .collect()
    }

    fn kernel_node(&self, node: CUgraphNode) -> Result<KernelNode, DriverError> {
        let api = self.context.enter("cuGraphKernelNodeGetParams")?;
        // SAFETY: the struct is integers and nullable pointers, for all of which zero is valid.
        let mut params: abi::CUDA_KERNEL_NODE_PARAMS_v2 = unsafe { std::mem::zeroed() };
        // SAFETY: the node belongs to a live graph and the pointer is to a live local.
        let result = unsafe { (api.cu_graph_kernel_node_get_params)(node, &mut params) };
        self.context
            .check("cuGraphKernelNodeGetParams", result, String::new)?;
        // SAFETY: the driver returned the function of a live node.
        let name = unsafe { function_name(api, params.func) };
        let mut bytes = Vec::new();
        if !params.kernelParams.is_null()
            && let Some(param_info) = api.cu_func_get_param_info
        {
            // SAFETY: the driver returned the function of a live node.
            if let Some(total) = unsafe { param_bytes(api, params.func) } {
                let total = total.map_err(|code| {
                    DriverError::from_call("cuFuncGetParamInfo", code, String::new())
                })?;
                bytes.resize(total, 0);
            }
            for index in 0.. {
                let (mut offset, mut len) = (0usize, 0usize);
                // SAFETY: the function is alive and both pointers are to live locals.
                let result = unsafe { param_info(params.func, index, &mut offset, &mut len) };
                if !result.is_success() {
                    break;
                }
                // SAFETY: the node owns an array with one pointer a parameter.
                let value: *const c_void = unsafe { *params.kernelParams.add(index) };
                // SAFETY: each pointer leads to the parameter's `len` bytes, owned by the node;
                // `bytes` spans offset + len of every parameter.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        value.cast::<u8>(),
                        bytes[offset..offset + len].as_mut_ptr(),
                        len,
                    );
                }
            }
        }
        Ok(KernelNode {
            name,
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block: [params.blockDimX, params.blockDimY, params.blockDimZ],
            shared_bytes: params.sharedMemBytes,
            params: bytes,
        })
    }

    fn destroy(&mut self) -> Result<(), DriverError> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: the handle was owned by `self` and is given back once.
        self.context.destroy("cuGraphDestroy", |api| unsafe {
            (api.cu_graph_destroy)(raw)
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let result = self.destroy();
        self.context.record(result);
    }
}

/// An executable graph. The modules whose kernels it launches must stay loaded while it runs.
#[derive(Debug)]
pub struct GraphExec {
    context: Context,
    raw: CUgraphExec,
}

// SAFETY: NVIDIA allows use from any thread, one at a time, which is what `Send` without `Sync` says.
unsafe impl Send for GraphExec {}

impl GraphExec {
    /// Uploads the graph to the device, so that the first launch does not have to.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuGraphUpload` returns.
    pub fn upload(&self, stream: &Stream) -> Result<(), DriverError> {
        let api = self.context.enter("cuGraphUpload")?;
        // SAFETY: both handles are alive.
        let result = unsafe { (api.cu_graph_upload)(self.raw, stream.raw()) };
        self.context.check("cuGraphUpload", result, String::new)
    }

    /// Launches the graph in stream order. Everything its nodes address must stay mapped until it is
    /// complete: the captured calls were `unsafe` for that reason.
    ///
    /// # Errors
    /// [`DriverError::Poisoned`], or whatever `cuGraphLaunch` returns.
    pub fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        let api = self.context.enter("cuGraphLaunch")?;
        // SAFETY: both handles are alive.
        let result = unsafe { (api.cu_graph_launch)(self.raw, stream.raw()) };
        self.context.check("cuGraphLaunch", result, String::new)
    }

    /// Destroys the executable graph and reports what `Drop` would only record.
    ///
    /// # Errors
    /// Whatever `cuGraphExecDestroy` returns.
    pub fn close(mut self) -> Result<(), DriverError> {
        self.destroy()
    }

    fn destroy(&mut self) -> Result<(), DriverError> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        if raw.is_null() {
            return Ok(());
        }
        // SAFETY: the handle was owned by `self` and is given back once.
        self.context.destroy("cuGraphExecDestroy", |api| unsafe {
            (api.cu_graph_exec_destroy)(raw)
        })
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let result = self.destroy();
        self.context.record(result);
    }
}
