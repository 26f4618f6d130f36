//! Strong accesses of pairs and vectors, by blocks that race: CUB's look-back passes a value and its status in one.

mod kernels;

use kernels::{Device, Params, alloc, download};

/// Half of the blocks write vectors whose words are all the same, the others count those that they find to be mixed.
fn mixed(store: &str, load: &str, differ: &str) -> u32 {
    const BLOCKS: u32 = 4;
    const ROUNDS: u32 = 4_000_000;
    let text = format!(
        r#"
.version 8.4
.target sm_90
.address_size 64

.visible .entry race(.param .u64 place, .param .u64 mixed)
{{
    .reg .pred %p<4>;
    .reg .b16 %h<8>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    .reg .b128 %q<2>;
    ld.param.u64 %rd1, [place];
    ld.param.u64 %rd2, [mixed];
    mov.u32 %r1, 0;
    mov.u32 %r2, 0;
    mov.u32 %r3, %ctaid.x;
    and.b32 %r3, %r3, 1;
    setp.ne.u32 %p1, %r3, 0;
    @%p1 bra READ;
WRITE:
    add.u32 %r1, %r1, 1;
    cvt.u16.u32 %h1, %r1;
    cvt.u64.u32 %rd3, %r1;
    mov.b128 %q1, {{%rd3, %rd3}};
    {store}
    setp.lt.u32 %p2, %r1, {ROUNDS};
    @%p2 bra WRITE;
    ret;
READ:
    add.u32 %r1, %r1, 1;
    {load}
    {differ}
    @%p3 add.u32 %r2, %r2, 1;
    setp.lt.u32 %p2, %r1, {ROUNDS};
    @%p2 bra READ;
    red.global.add.u32 [%rd2], %r2;
    ret;
}}
"#
    );
    let device = Device::load(&text);
    let (place, mixed) = (alloc(16), alloc(4));
    device.run("race", BLOCKS, 1, Params::new().add(place).add(mixed));
    download::<u32>(mixed, 1)[0]
}

#[test]
fn pairs_are_never_mixed() {
    let differ = "setp.ne.u32 %p3, %r4, %r5;";
    for order in ["volatile", "relaxed.gpu"] {
        let store = format!("st.{order}.global.v2.u32 [%rd1], {{%r1, %r1}};");
        let load = format!("ld.{order}.global.v2.u32 {{%r4, %r5}}, [%rd1];");
        assert_eq!(mixed(&store, &load, differ), 0, "{order}");
    }
    let (store, load) = ("st.cg.v2.u32 [%rd1], {%r1, %r1};", "ld.cg.v2.u32 {%r4, %r5}, [%rd1];");
    assert_eq!(mixed(store, load, differ), 0, "as older versions of CUB have it");
}

#[test]
fn four_small_words_are_never_mixed() {
    let store = "st.release.gpu.global.v4.u16 [%rd1], {%h1, %h1, %h1, %h1};";
    let load = "ld.acquire.gpu.global.v4.u16 {%h2, %h3, %h4, %h5}, [%rd1];";
    let differ = "xor.b16 %h3, %h2, %h3; xor.b16 %h4, %h2, %h4; xor.b16 %h5, %h2, %h5;
        or.b16 %h3, %h3, %h4; or.b16 %h3, %h3, %h5; setp.ne.u16 %p3, %h3, 0;";
    assert_eq!(mixed(store, load, differ), 0);
}

#[test]
fn sixteen_bytes_are_never_mixed() {
    let store = "st.relaxed.gpu.global.v4.u32 [%rd1], {%r1, %r1, %r1, %r1};";
    let load = "ld.relaxed.gpu.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd1];";
    let differ = "xor.b32 %r5, %r4, %r5; xor.b32 %r6, %r4, %r6; xor.b32 %r7, %r4, %r7;
        or.b32 %r5, %r5, %r6; or.b32 %r5, %r5, %r7; setp.ne.u32 %p3, %r5, 0;";
    assert_eq!(mixed(store, load, differ), 0, "four words");
    let store = "st.volatile.global.v2.u64 [%rd1], {%rd3, %rd3};";
    let load = "ld.volatile.global.v2.u64 {%rd4, %rd5}, [%rd1];";
    let differ = "setp.ne.u64 %p3, %rd4, %rd5;";
    assert_eq!(mixed(store, load, differ), 0, "two words");
    let store = "st.relaxed.gpu.global.b128 [%rd1], %q1;";
    let load = "ld.relaxed.gpu.global.b128 %q1, [%rd1]; mov.b128 {%rd4, %rd5}, %q1;";
    assert_eq!(mixed(store, load, differ), 0, "one word");
}

/// Each lane gets its own word, whatever lies around it.
#[test]
fn every_lane_has_its_place() {
    let text = r#"
.version 8.4
.target sm_90
.address_size 64

.visible .entry lanes(.param .u64 from, .param .u64 to)
{
    .reg .b16 %h<8>;
    .reg .b32 %r<16>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    ld.volatile.global.v4.u32 {%r1, %r2, %r3, %r4}, [%rd1];
    st.volatile.global.v4.u32 [%rd2], {%r4, %r3, %r2, %r1};
    ld.volatile.global.v2.s16 {%r5, _}, [%rd1];
    ld.volatile.global.v2.s16 {_, %r6}, [%rd1];
    st.volatile.global.v2.u32 [%rd2+16], {%r5, %r6};
    ld.volatile.global.v2.f32 {%f1, %f2}, [%rd1+8];
    st.volatile.global.v2.f32 [%rd2+24], {%f2, %f1};
    ld.volatile.global.v4.u8 {%h1, %h2, %h3, %h4}, [%rd1];
    st.volatile.global.v4.u8 [%rd2+32], {%h4, %h3, 7, %h1};
    ld.volatile.global.v8.u32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd1];
    st.volatile.global.v8.u32 [%rd2+64], {%r8, %r7, %r6, %r5, %r4, %r3, %r2, %r1};
    ld.volatile.global.v2.u64 {%rd3, %rd4}, [%rd1];
    st.volatile.global.v2.u64 [%rd2+96], {%rd4, %rd3};
    ret;
}
"#;
    let device = Device::load(text);
    let words: [u32; 8] = [0x8001_fffe, 0x1234_5678, 0x3f80_0000, 0xc000_0000, 5, 6, 7, 8];
    let (from, to) = (kernels::upload(&words), alloc(128));
    device.run("lanes", 1, 1, Params::new().add(from).add(to));
    let mut wanted = [0u32; 28];
    let [a, b, c, d, ..] = words;
    wanted[..8].copy_from_slice(&[d, c, b, a, 0xffff_fffe, 0xffff_8001, d, c]);
    wanted[8] = 0xfe07_0180;
    wanted[16..24].copy_from_slice(&[8, 7, 6, 5, d, c, b, a]);
    wanted[24..].copy_from_slice(&[c, d, a, b]);
    assert_eq!(download::<u32>(to, 28), wanted);
}
