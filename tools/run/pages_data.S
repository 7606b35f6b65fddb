/* The sample pages as read-only data; pages.h says what they are. KVT_PAGES_DIR is given by the build. */
        .section .rodata
        .macro PAGES name, file
        .global kvt_pages_\name
        .global kvt_pages_\name\()_end
        .hidden kvt_pages_\name
        .hidden kvt_pages_\name\()_end
        .balign 64
kvt_pages_\name:
        .incbin "\file"
kvt_pages_\name\()_end:
        .byte 0
        .endm

        PAGES bf16, KVT_PAGES_BF16
        PAGES fp16, KVT_PAGES_FP16
        PAGES fp8, KVT_PAGES_FP8

#if defined(__linux__) && defined(__ELF__)
        .section .note.GNU-stack, "", %progbits
#endif
