// Register lists of inline assembly, which templates cannot generate: the sums of wgmma (wgmma.cuh), four for each of 1
// to 16, 19, 22, 25 or 32 blocks of eight columns.
#pragma once

#define TSA_NAMES_1 "%0, %1, %2, %3"
#define TSA_NAMES_2 TSA_NAMES_1 ", %4, %5, %6, %7"
#define TSA_NAMES_3 TSA_NAMES_2 ", %8, %9, %10, %11"
#define TSA_NAMES_4 TSA_NAMES_3 ", %12, %13, %14, %15"
#define TSA_NAMES_5 TSA_NAMES_4 ", %16, %17, %18, %19"
#define TSA_NAMES_6 TSA_NAMES_5 ", %20, %21, %22, %23"
#define TSA_NAMES_7 TSA_NAMES_6 ", %24, %25, %26, %27"
#define TSA_NAMES_8 TSA_NAMES_7 ", %28, %29, %30, %31"
#define TSA_NAMES_9 TSA_NAMES_8 ", %32, %33, %34, %35"
#define TSA_NAMES_10 TSA_NAMES_9 ", %36, %37, %38, %39"
#define TSA_NAMES_11 TSA_NAMES_10 ", %40, %41, %42, %43"
#define TSA_NAMES_12 TSA_NAMES_11 ", %44, %45, %46, %47"
#define TSA_NAMES_13 TSA_NAMES_12 ", %48, %49, %50, %51"
#define TSA_NAMES_14 TSA_NAMES_13 ", %52, %53, %54, %55"
#define TSA_NAMES_15 TSA_NAMES_14 ", %56, %57, %58, %59"
#define TSA_NAMES_16 TSA_NAMES_15 ", %60, %61, %62, %63"
#define TSA_NAMES_19 TSA_NAMES_16 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75"
#define TSA_NAMES_22 TSA_NAMES_19 ", %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87"
#define TSA_NAMES_25 TSA_NAMES_22 ", %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99"
#define TSA_NAMES_28 TSA_NAMES_25 ", %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TSA_NAMES_32 \
  TSA_NAMES_28 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TSA_SUMS_OF(j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define TSA_SUMS_1 TSA_SUMS_OF(0)
#define TSA_SUMS_2 TSA_SUMS_1, TSA_SUMS_OF(1)
#define TSA_SUMS_3 TSA_SUMS_2, TSA_SUMS_OF(2)
#define TSA_SUMS_4 TSA_SUMS_3, TSA_SUMS_OF(3)
#define TSA_SUMS_5 TSA_SUMS_4, TSA_SUMS_OF(4)
#define TSA_SUMS_6 TSA_SUMS_5, TSA_SUMS_OF(5)
#define TSA_SUMS_7 TSA_SUMS_6, TSA_SUMS_OF(6)
#define TSA_SUMS_8 TSA_SUMS_7, TSA_SUMS_OF(7)
#define TSA_SUMS_9 TSA_SUMS_8, TSA_SUMS_OF(8)
#define TSA_SUMS_10 TSA_SUMS_9, TSA_SUMS_OF(9)
#define TSA_SUMS_11 TSA_SUMS_10, TSA_SUMS_OF(10)
#define TSA_SUMS_12 TSA_SUMS_11, TSA_SUMS_OF(11)
#define TSA_SUMS_13 TSA_SUMS_12, TSA_SUMS_OF(12)
#define TSA_SUMS_14 TSA_SUMS_13, TSA_SUMS_OF(13)
#define TSA_SUMS_15 TSA_SUMS_14, TSA_SUMS_OF(14)
#define TSA_SUMS_16 TSA_SUMS_15, TSA_SUMS_OF(15)
#define TSA_SUMS_19 TSA_SUMS_16, TSA_SUMS_OF(16), TSA_SUMS_OF(17), TSA_SUMS_OF(18)
#define TSA_SUMS_22 TSA_SUMS_19, TSA_SUMS_OF(19), TSA_SUMS_OF(20), TSA_SUMS_OF(21)
#define TSA_SUMS_25 TSA_SUMS_22, TSA_SUMS_OF(22), TSA_SUMS_OF(23), TSA_SUMS_OF(24)
#define TSA_SUMS_28 TSA_SUMS_25, TSA_SUMS_OF(25), TSA_SUMS_OF(26), TSA_SUMS_OF(27)
#define TSA_SUMS_32 TSA_SUMS_28, TSA_SUMS_OF(28), TSA_SUMS_OF(29), TSA_SUMS_OF(30), TSA_SUMS_OF(31)
