#include "textflag.h"

// 16 times the same byte
#define ALL(name, eight) DATA name<>+0(SB)/8, eight; DATA name<>+8(SB)/8, eight; GLOBL name<>(SB), RODATA|NOPTR, $16
ALL(nibble, $0x0f0f0f0f0f0f0f0f)
ALL(nine, $0x0909090909090909)
ALL(zero, $0x3030303030303030)
ALL(letter, $0x2727272727272727)

// func hexBytes(dst, src *byte, n int)
TEXT ·hexBytes(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVOU nibble<>(SB), X5
	MOVOU nine<>(SB), X6
	MOVOU zero<>(SB), X7
	MOVOU letter<>(SB), X8
block:
	MOVOU (SI), X0 // upper halves, which come first
	MOVO X0, X1    // lower halves
	PSRLW $4, X0
	PAND X5, X0
	PAND X5, X1
	MOVO X0, X2
	PUNPCKLBW X1, X0
	PUNPCKHBW X1, X2
	MOVO X0, X3
	MOVO X2, X4
	PCMPGTB X6, X3 // what is above nine is a letter
	PCMPGTB X6, X4
	PAND X8, X3
	PAND X8, X4
	PADDB X7, X0
	PADDB X7, X2
	PADDB X3, X0
	PADDB X4, X2
	MOVOU X0, (DI)
	MOVOU X2, 16(DI)
	SUBQ $16, CX
	JLE done
	MOVQ $16, AX   // the next 16 bytes, or the last ones
	CMPQ CX, AX
	CMOVQLT CX, AX
	ADDQ AX, SI
	LEAQ (DI)(AX*2), DI
	JMP block
done:
	RET
