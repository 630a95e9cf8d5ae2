# cmake -DSOURCE=... -DOUTPUT=... -P commit.cmake: writes OUTPUT with the commit of the git tree
# SOURCE, an empty string where there is none. The file is touched only when that changes.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
                ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once\n\n#define ADDER_COMMIT \"${commit}\"\n")
