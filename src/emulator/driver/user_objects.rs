//! User objects: something of the program's that lives for as long as graphs refer to it.

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use super::arguments::{Out, calls};
use super::entry::{named, on_device};
use super::failure::Failure;
use super::registry::{self, Kind};

/// An object with the function that ends it.
#[derive(Debug)]
pub(super) struct UserObject {
    pointer: usize,
    destroy: unsafe extern "C" fn(*mut c_void),
    id: u64,
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // As the driver: the function must not call the driver.
        registry::in_host_function(|| {
            // SAFETY: the caller of the C function passed a function that takes the pointer.
            unsafe { (self.destroy)(self.pointer as *mut c_void) };
        });
    }
}

/// References that the program itself holds, by object, after the newest object's number.
type Objects = (u64, BTreeMap<u64, Vec<Arc<UserObject>>>);

static OBJECTS: Mutex<Objects> = Mutex::new((0, BTreeMap::new()));

fn with_object<T>(
    object: u64,
    body: impl FnOnce(&mut Vec<Arc<UserObject>>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let unknown = || Failure::invalid("the handle names no user object");
    let (_, id) = registry::decode_parts(object, Kind::UserObject).ok_or_else(unknown)?;
    let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
    let references = objects.1.get_mut(&id).ok_or_else(unknown)?;
    let outcome = body(references);
    if references.is_empty() {
        objects.1.remove(&id);
    }
    outcome
}

/// Takes references from a list.
fn take(
    references: &mut Vec<Arc<UserObject>>,
    count: usize,
) -> Result<Vec<Arc<UserObject>>, Failure> {
    if count == 0 || count > references.len() {
        return Err(Failure::invalid(format!(
            "{count} references of the {} that are held",
            references.len()
        )));
    }
    Ok(references.split_off(references.len() - count))
}

calls! {
    "cuUserObjectCreate" fn user_object_create(
        object: Out<u64>, pointer: usize, destroy: Option<unsafe extern "C" fn(*mut c_void)>,
        count: c_uint, flags: c_uint,
    ) {
        object.required("the object")?;
        let destroy = destroy.ok_or_else(|| Failure::null("the function"))?;
        // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC must be set.
        if flags != 1 || count == 0 || count > i32::MAX as u32 {
            return Err(Failure::invalid("the flags must be 1, and references at least one"));
        }
        let mut objects = OBJECTS.lock().unwrap_or_else(PoisonError::into_inner);
        objects.0 += 1;
        let id = objects.0;
        let first = Arc::new(UserObject { pointer, destroy, id });
        objects.1.insert(id, vec![first; count as usize]);
        object.put(registry::handle(Kind::UserObject, 0, id), "the object")
    }

    "cuUserObjectRetain" fn user_object_retain(object: u64, count: c_uint) {
        with_object(object, |references| {
            let Some(first) = references.first().filter(|_| count > 0).cloned() else {
                return Err(Failure::invalid("no references to take"));
            };
            references.extend(std::iter::repeat_n(first, count as usize));
            Ok(())
        })
    }

    "cuUserObjectRelease" fn user_object_release(object: u64, count: c_uint) {
        // Dropped outside of the list's lock: an object's end is the program's code.
        let gone = with_object(object, |references| take(references, count as usize))?;
        drop(gone);
        Ok(())
    }

    "cuGraphRetainUserObject" fn graph_retain_user_object(graph: u64, object: u64, count: c_uint, flags: c_uint) {
        let (device, graph) = named(graph, Kind::Graph, "graph")?;
        // CU_GRAPH_USER_OBJECT_MOVE hands the caller's references over.
        let moved = match flags {
            0 => with_object(object, |references| {
                let Some(first) = references.first().filter(|_| count > 0).cloned() else {
                    return Err(Failure::invalid("no references to take"));
                };
                Ok(vec![first; count as usize])
            })?,
            1 => with_object(object, |references| take(references, count as usize))?,
            other => return Err(Failure::invalid(format!("no flags {other:#x}"))),
        };
        on_device(CALL, &device, |state| {
            state.graph_mut(graph)?.objects.extend(moved);
            Ok(())
        })
    }

    "cuGraphReleaseUserObject" fn graph_release_user_object(graph: u64, object: u64, count: c_uint) {
        let (device, graph) = named(graph, Kind::Graph, "graph")?;
        let (_, id) = registry::decode_parts(object, Kind::UserObject)
            .ok_or_else(|| Failure::invalid("the handle names no user object"))?;
        let gone = on_device(CALL, &device, |state| {
            let held = &mut state.graph_mut(graph)?.objects;
            let (mut of_object, rest): (Vec<_>, Vec<_>) = held.drain(..).partition(|held| held.id == id);
            *held = rest;
            let gone = take(&mut of_object, count as usize);
            held.extend(of_object);
            gone
        })?;
        drop(gone);
        Ok(())
    }
}
