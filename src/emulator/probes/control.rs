//! Branches, calls, the stack, and what only takes time.

use super::{Family, Fill, Needs, Pattern, Probe};

/// Forms of one warp: the form, text of the module before the kernel, and the body; the result is `%o0`.
const FORMS: [(&str, &str, &str); 37] = [
    // Branches.
    (
        "bra",
        "",
        "mov.b32 %o0, %a0; bra L{n}; add.u32 %o0, %o0, 1; L{n}: xor.b32 %o0, %o0, 5;",
    ),
    (
        "bra.uni",
        "",
        "mov.b32 %o0, %a0; bra.uni L{n}; add.u32 %o0, %o0, 1; L{n}: xor.b32 %o0, %o0, 5;",
    ),
    (
        "@p bra",
        "",
        "and.b32 %r0, %a0, 1; setp.eq.u32 %p1, %r0, 1; @%p1 bra ODD{n}; mul.lo.u32 %o0, %a0, 3; bra END{n}; ODD{n}: add.u32 %o0, %a0, 7; END{n}: add.u32 %o0, %o0, %a1;",
    ),
    (
        "@!p bra",
        "",
        "and.b32 %r0, %a0, 1; setp.eq.u32 %p1, %r0, 1; @!%p1 bra EVEN{n}; add.u32 %o0, %a0, 7; bra END{n}; EVEN{n}: mul.lo.u32 %o0, %a0, 3; END{n}: add.u32 %o0, %o0, %a1;",
    ),
    (
        "@p bra (all lanes)",
        "",
        "setp.lt.u32 %p1, %lane, 32; mov.b32 %o0, %a0; @%p1 bra L{n}; mov.b32 %o0, 1; L{n}: add.u32 %o0, %o0, %a1;",
    ),
    (
        "@p bra (no lane)",
        "",
        "setp.ge.u32 %p1, %lane, 32; mov.b32 %o0, %a0; @%p1 bra L{n}; add.u32 %o0, %o0, 1; L{n}: add.u32 %o0, %o0, %a1;",
    ),
    (
        "bra (loop)",
        "",
        "and.b32 %r0, %a0, 31; mov.b32 %o0, %a1; L{n}: mad.lo.u32 %o0, %o0, 5, %a0; sub.u32 %r0, %r0, 1; setp.ge.s32 %p1, %r0, 0; @%p1 bra L{n};",
    ),
    (
        "bra (loop in a loop)",
        "",
        "and.b32 %r0, %a0, 7; mov.b32 %o0, %a1; OUTER{n}: and.b32 %r1, %o0, 3; INNER{n}: mad.lo.u32 %o0, %o0, 5, %r0; sub.u32 %r1, %r1, 1; setp.ge.s32 %p1, %r1, 0; @%p1 bra INNER{n}; sub.u32 %r0, %r0, 1; setp.ge.s32 %p1, %r0, 0; @%p1 bra OUTER{n};",
    ),
    (
        "bra (out of a loop, and to its start)",
        "",
        "mov.b32 %r0, 0; mov.b32 %o0, %a1; L{n}: add.u32 %r0, %r0, 1; setp.gt.u32 %p1, %r0, 20; @%p1 bra END{n}; mad.lo.u32 %o0, %o0, 5, %a0; and.b32 %r1, %o0, 1; setp.eq.u32 %p2, %r1, 0; @%p2 bra L{n}; and.b32 %r1, %o0, 30; setp.eq.u32 %p3, %r1, 30; @%p3 bra END{n}; xor.b32 %o0, %o0, %r0; bra L{n}; END{n}: add.u32 %o0, %o0, %r0;",
    ),
    (
        "bra (into a loop)",
        "",
        "and.b32 %r0, %a0, 7; mov.b32 %o0, %a1; and.b32 %r1, %a1, 1; setp.eq.u32 %p1, %r1, 1; @%p1 bra MIDDLE{n}; L{n}: add.u32 %o0, %o0, %a0; MIDDLE{n}: mul.lo.u32 %o0, %o0, 3; sub.u32 %r0, %r0, 1; setp.ge.s32 %p2, %r0, 0; @%p2 bra L{n};",
    ),
    (
        "brx.idx",
        "",
        "TO{n}: .branchtargets A{n}, B{n}, C{n}, D{n};\nand.b32 %r0, %a0, 3; brx.idx %r0, TO{n}; A{n}: add.u32 %o0, %a1, 1; bra END{n}; B{n}: mul.lo.u32 %o0, %a1, 3; bra END{n}; C{n}: not.b32 %o0, %a1; D{n}: xor.b32 %o0, %o0, %a0; END{n}: add.u32 %o0, %o0, 9;",
    ),
    (
        "brx.idx.uni",
        "",
        "TO{n}: .branchtargets A{n}, B{n}, C{n}, D{n};\nadd.u32 %r0, %z, 2; brx.idx.uni %r0, TO{n}; A{n}: add.u32 %o0, %a1, 1; bra END{n}; B{n}: mul.lo.u32 %o0, %a1, 3; bra END{n}; C{n}: not.b32 %o0, %a1; D{n}: xor.b32 %o0, %o0, %a0; END{n}: add.u32 %o0, %o0, 9;",
    ),
    (
        "@p brx.idx",
        "",
        "TO{n}: .branchtargets A{n}, B{n};\nand.b32 %r0, %a0, 1; and.b32 %r1, %a0, 2; setp.ne.u32 %p1, %r1, 0; @%p1 brx.idx %r0, TO{n}; mov.b32 %o0, 77; bra END{n}; A{n}: add.u32 %o0, %a1, 1; bra END{n}; B{n}: mul.lo.u32 %o0, %a1, 3; END{n}: add.u32 %o0, %o0, 9;",
    ),
    // Calls.
    (
        "call (registers)",
        ".func (.reg .b32 r) f{n}(.reg .b32 x, .reg .b32 y)\n{\nmad.lo.u32 r, x, 3, y; ret;\n}\n",
        "call (%o0), f{n}, (%a0, %a1);",
    ),
    (
        "call.uni (registers)",
        ".func (.reg .b32 r) f{n}(.reg .b32 x, .reg .b32 y)\n{\nmad.lo.u32 r, x, 3, y; ret;\n}\n",
        "call.uni (%o0), f{n}, (%a0, %a1);",
    ),
    (
        "call (parameters)",
        FUNCTION,
        "{ .param .b32 r; .param .b32 x; .param .b32 y; st.param.b32 [x], %a0; st.param.b32 [y], %a1; call (r), f{n}, (x, y); ld.param.b32 %o0, [r]; }",
    ),
    (
        "call (divergent)",
        FUNCTION,
        "mov.b32 %o0, 5; setp.lt.s32 %p1, %a0, 0; @%p1 bra END{n}; { .param .b32 r; .param .b32 x; .param .b32 y; st.param.b32 [x], %a0; st.param.b32 [y], %a1; call (r), f{n}, (x, y); ld.param.b32 %o0, [r]; } END{n}: add.u32 %o0, %o0, %a1;",
    ),
    (
        "@p call",
        ".func f{n}(.param .b64 place, .param .b32 x)\n{\n.reg .b64 %q; .reg .b32 %v; ld.param.b64 %q, [place]; ld.param.b32 %v, [x]; st.global.b32 [%q], %v; ret;\n}\n",
        "setp.lt.s32 %p1, %a0, 0; { .param .b64 q; .param .b32 x; st.param.b64 [q], %out; st.param.b32 [x], %a1; @%p1 call f{n}, (q, x); } ld.global.b32 %o0, [%out]; add.u32 %o0, %o0, 1;",
    ),
    (
        "call (structures)",
        ".func (.param .align 8 .b8 r[16]) f{n}(.param .align 16 .b8 x[32], .param .b64 y, .param .b8 z)\n{\n.reg .b32 %v<4>; .reg .b64 %q<2>; .reg .b16 %h; ld.param.v2.b32 {%v0, %v1}, [x+16]; ld.param.b64 %q0, [y]; ld.param.u8 %h, [z]; cvt.u32.u16 %v2, %h; add.u32 %v0, %v0, %v2; mov.b64 %q1, {%v0, %v1}; add.u64 %q1, %q1, %q0; st.param.b64 [r], %q0; st.param.b64 [r+8], %q1; ret;\n}\n",
        "{ .param .align 8 .b8 r[16]; .param .align 16 .b8 x[32]; .param .b64 y; .param .b8 z; mov.b64 %rd0, {%a1, %a0}; cvt.u16.u32 %rs0, %a0; st.param.v2.b32 [x+16], {%a0, %a1}; st.param.b64 [y], %rd0; st.param.b8 [z], %rs0; call (r), f{n}, (x, y, z); ld.param.b64 %rd1, [r]; ld.param.b64 %rd2, [r+8]; } xor.b64 %rd1, %rd1, %rd2; mov.b64 {%r0, %r1}, %rd1; mad.lo.u32 %o0, %r1, 3, %r0;",
    ),
    (
        "call (a call in a call)",
        ".func (.reg .b32 r) g{n}(.reg .b32 x)\n{\nmul.lo.u32 r, x, 5; ret;\n}\n.func (.reg .b32 r) f{n}(.reg .b32 x, .reg .b32 y)\n{\n.reg .b32 %v; call (%v), g{n}, (x); add.u32 %v, %v, y; call (r), g{n}, (%v); ret;\n}\n",
        "call (%o0), f{n}, (%a0, %a1);",
    ),
    (
        "call (recursion)",
        ".func (.param .b32 r) f{n}(.param .b32 x, .param .b32 y)\n{\n.reg .pred %q; .reg .b32 %v<5>; ld.param.b32 %v0, [x]; ld.param.b32 %v1, [y]; mov.b32 %v2, %v1; setp.eq.u32 %q, %v0, 0; @%q bra END; { .param .b32 a; .param .b32 b; .param .b32 c; sub.u32 %v3, %v0, 1; mul.lo.u32 %v4, %v1, 3; st.param.b32 [a], %v3; st.param.b32 [b], %v4; call (c), f{n}, (a, b); ld.param.b32 %v2, [c]; } mad.lo.u32 %v2, %v2, 7, %v1; END: st.param.b32 [r], %v2; ret;\n}\n",
        "and.b32 %r0, %a0, 7; { .param .b32 r; .param .b32 x; .param .b32 y; st.param.b32 [x], %r0; st.param.b32 [y], %a1; call (r), f{n}, (x, y); ld.param.b32 %o0, [r]; }",
    ),
    (
        "call (a register, .callprototype)",
        FUNCTIONS,
        "P{n}: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);\nmov.u64 %rd0, f{n}; mov.u64 %rd1, g{n}; setp.lt.s32 %p1, %a0, 0; selp.b64 %rd0, %rd0, %rd1, %p1; { .param .b32 r; .param .b32 x; .param .b32 y; st.param.b32 [x], %a0; st.param.b32 [y], %a1; call (r), %rd0, (x, y), P{n}; ld.param.b32 %o0, [r]; }",
    ),
    (
        "call (a register, .calltargets)",
        FUNCTIONS,
        "T{n}: .calltargets f{n}, g{n};\nmov.u64 %rd0, f{n}; mov.u64 %rd1, g{n}; setp.lt.s32 %p1, %a0, 0; selp.b64 %rd0, %rd0, %rd1, %p1; { .param .b32 r; .param .b32 x; .param .b32 y; st.param.b32 [x], %a0; st.param.b32 [y], %a1; call (r), %rd0, (x, y), T{n}; ld.param.b32 %o0, [r]; }",
    ),
    (
        "call (a table's entry)",
        TABLE,
        "P{n}: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);\nmov.u64 %rd0, table{n}; shr.u32 %r0, %a0, 31; mad.wide.u32 %rd0, %r0, 8, %rd0; ld.global.u64 %rd0, [%rd0]; { .param .b32 r; .param .b32 x; .param .b32 y; st.param.b32 [x], %a0; st.param.b32 [y], %a1; call (r), %rd0, (x, y), P{n}; ld.param.b32 %o0, [r]; }",
    ),
    // Lanes that leave.
    (
        "ret (some lanes, in a function)",
        ".func (.reg .b32 r) f{n}(.reg .b32 x, .reg .b32 y)\n{\n.reg .pred %q; add.u32 r, x, 1; setp.lt.s32 %q, x, 0; @%q ret; mad.lo.u32 r, x, 3, y; ret;\n}\n",
        "call (%o0), f{n}, (%a0, %a1); add.u32 %o0, %o0, %a1;",
    ),
    (
        "ret.uni",
        ".func (.reg .b32 r) f{n}(.reg .b32 x, .reg .b32 y)\n{\nadd.u32 r, x, y; ret.uni;\n}\n",
        "call (%o0), f{n}, (%a0, %a1);",
    ),
    (
        "@p ret",
        "",
        "setp.lt.s32 %p1, %a0, 0; st.global.b32 [%out], %a1; @%p1 ret; add.u32 %o0, %a0, %a1;",
    ),
    (
        "@p exit",
        "",
        "setp.lt.s32 %p1, %a0, 0; st.global.b32 [%out], %a1; @%p1 exit; add.u32 %o0, %a0, %a1;",
    ),
    (
        "exit (divergent)",
        "",
        "setp.ge.s32 %p1, %a0, 0; @%p1 bra L{n}; st.global.b32 [%out], %a1; exit; L{n}: add.u32 %o0, %a0, %a1;",
    ),
    (
        "exit (in a function)",
        ".func (.reg .b32 r) f{n}(.reg .b32 x, .reg .b32 y)\n{\n.reg .pred %q; setp.lt.s32 %q, x, 0; @%q exit; mad.lo.u32 r, x, 3, y; ret;\n}\n",
        "st.global.b32 [%out], %a1; call (%o0), f{n}, (%a0, %a1);",
    ),
    // The stack.
    (
        ".local (an array)",
        "",
        ".local .align 4 .b8 place[64]; mov.u64 %rd0, place; mov.b32 %r0, 0; L{n}: mad.lo.u32 %r1, %r0, %a0, %a1; mad.wide.u32 %rd1, %r0, 4, %rd0; st.local.b32 [%rd1], %r1; add.u32 %r0, %r0, 1; setp.lt.u32 %p1, %r0, 16; @%p1 bra L{n}; and.b32 %r2, %a0, 15; mad.wide.u32 %rd1, %r2, 4, %rd0; ld.local.b32 %o0, [%rd1]; ld.local.b32 %r3, [place+20]; xor.b32 %o0, %o0, %r3;",
    ),
    (
        ".local (in a recursion)",
        ".func (.param .b32 r) f{n}(.param .b32 x, .param .b32 y)\n{\n.local .align 4 .b8 place[16]; .reg .pred %q; .reg .b32 %v<6>; .reg .b64 %d<2>; ld.param.b32 %v0, [x]; ld.param.b32 %v1, [y]; add.u32 %v2, %v1, %v0; st.local.b32 [place], %v1; st.local.b32 [place+12], %v2; mov.b32 %v2, 0; setp.eq.u32 %q, %v0, 0; @%q bra END; { .param .b32 a; .param .b32 b; .param .b32 c; sub.u32 %v3, %v0, 1; mul.lo.u32 %v4, %v1, 3; st.param.b32 [a], %v3; st.param.b32 [b], %v4; call (c), f{n}, (a, b); ld.param.b32 %v2, [c]; } END: and.b32 %v5, %v0, 1; mov.u64 %d0, place; mad.wide.u32 %d1, %v5, 12, %d0; ld.local.b32 %v5, [%d1]; mad.lo.u32 %v2, %v2, 7, %v5; st.param.b32 [r], %v2; ret;\n}\n",
        "and.b32 %r0, %a0, 7; { .param .b32 r; .param .b32 x; .param .b32 y; st.param.b32 [x], %r0; st.param.b32 [y], %a1; call (r), f{n}, (x, y); ld.param.b32 %o0, [r]; }",
    ),
    // What has no effect.
    (
        "nanosleep.u32",
        "",
        "mov.b32 %o0, %a0; nanosleep.u32 100; add.u32 %o0, %o0, %a1;",
    ),
    (
        "nanosleep.u32 register",
        "",
        "and.b32 %r0, %a0, 63; nanosleep.u32 %r0; add.u32 %o0, %a0, %a1;",
    ),
    (
        "pmevent",
        "",
        "mov.b32 %o0, %a0; pmevent 3; add.u32 %o0, %o0, %a1;",
    ),
    (
        "pmevent.mask",
        "",
        "mov.b32 %o0, %a0; pmevent.mask 0xff; add.u32 %o0, %o0, %a1;",
    ),
    (
        "@p trap (no lane)",
        "",
        "setp.ge.u32 %p1, %lane, 32; @%p1 trap; add.u32 %o0, %a0, %a1;",
    ),
];

const FUNCTION: &str = ".func (.param .b32 r) f{n}(.param .b32 x, .param .b32 y)\n{\n.reg .b32 %v<3>; ld.param.b32 %v0, [x]; ld.param.b32 %v1, [y]; mad.lo.u32 %v2, %v0, 3, %v1; st.param.b32 [r], %v2; ret;\n}\n";

const FUNCTIONS: &str = ".func (.param .b32 r) f{n}(.param .b32 x, .param .b32 y)\n{\n.reg .b32 %v<3>; ld.param.b32 %v0, [x]; ld.param.b32 %v1, [y]; mad.lo.u32 %v2, %v0, 3, %v1; st.param.b32 [r], %v2; ret;\n}\n\
     .func (.param .b32 r) g{n}(.param .b32 x, .param .b32 y)\n{\n.reg .b32 %v<3>; ld.param.b32 %v0, [x]; ld.param.b32 %v1, [y]; xor.b32 %v2, %v0, %v1; st.param.b32 [r], %v2; ret;\n}\n";

const TABLE: &str = ".func (.param .b32 r) f{n}(.param .b32 x, .param .b32 y)\n{\n.reg .b32 %v<3>; ld.param.b32 %v0, [x]; ld.param.b32 %v1, [y]; mad.lo.u32 %v2, %v0, 3, %v1; st.param.b32 [r], %v2; ret;\n}\n\
     .func (.param .b32 r) g{n}(.param .b32 x, .param .b32 y)\n{\n.reg .b32 %v<3>; ld.param.b32 %v0, [x]; ld.param.b32 %v1, [y]; xor.b32 %v2, %v0, %v1; st.param.b32 [r], %v2; ret;\n}\n\
     .global .align 8 .u64 table{n}[2] = {g{n}, f{n}};\n";

pub(super) fn list(probes: &mut Vec<Probe>) {
    let noise = [Fill::Word(Pattern::Noise); 2];
    let probe = |form: &str, words: usize, body: &str| {
        Probe::new(Family::Control, form, words)
            .inputs(noise)
            .body(body)
    };
    for (form, globals, body) in FORMS {
        probes.push(probe(form, 1, body).globals(globals));
    }
    for (form, needs, body) in [
        (
            "alloca.u64",
            Needs::AMPERE,
            "and.b32 %r0, %a0, 48; add.u32 %r0, %r0, 16; cvt.u64.u32 %rd0, %r0; alloca.u64 %rd1, %rd0, 16; st.local.b32 [%rd1+12], %a1; st.local.b32 [%rd1], %a0; ld.local.b32 %o0, [%rd1+12]; and.b64 %rd2, %rd1, 15; cvt.u32.u64 %r1, %rd2; add.u32 %o0, %o0, %r1;",
        ),
        (
            "stacksave.u64, stackrestore.u64",
            Needs::AMPERE,
            "stacksave.u64 %rd3; alloca.u64 %rd1, 32; st.local.b32 [%rd1], %a0; ld.local.b32 %r0, [%rd1]; stackrestore.u64 %rd3; stacksave.u64 %rd4; setp.eq.u64 %p1, %rd3, %rd4; selp.b32 %r1, 1, 0, %p1; add.u32 %o0, %r0, %r1;",
        ),
        (
            "griddepcontrol.wait",
            Needs::HOPPER,
            "mov.b32 %o0, %a0; griddepcontrol.wait; add.u32 %o0, %o0, %a1;",
        ),
        (
            "griddepcontrol.launch_dependents",
            Needs::HOPPER,
            "mov.b32 %o0, %a0; griddepcontrol.launch_dependents; add.u32 %o0, %o0, %a1;",
        ),
    ] {
        probes.push(probe(form, 1, body).needs(needs));
    }
    // The second warp has left when the first one comes to the barrier.
    let body = "setp.ge.u32 %p1, %t, 32; st.global.b32 [%out], %a1; @%p1 exit; bar.sync 0; add.u32 %o0, %a0, %a1;";
    probes.push(probe("exit (then a barrier)", 1, body).threads(64));
    // One warpgroup gives registers away, the other one takes them.
    let form = "setmaxnreg.dec.sync.aligned.u32, setmaxnreg.inc.sync.aligned.u32";
    let body = "setp.ge.u32 %p1, %t, 128; @%p1 bra MORE{n}; setmaxnreg.dec.sync.aligned.u32 40; add.u32 %o0, %a0, %a1; bra END{n};\n\
                MORE{n}: setmaxnreg.inc.sync.aligned.u32 88; xor.b32 %o0, %a0, %a1; END{n}:";
    let probe = probe(form, 1, body).needs(Needs::HOPPER_ONLY);
    probes.push(probe.threads(256).registers(64));
}
