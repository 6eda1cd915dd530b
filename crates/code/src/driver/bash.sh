# Runs code in one shell, cell after cell. The requests and frames are those of the Python driver; a shell
# has nothing to show but its output and its exit code.
__cove_mark=$'\036'$1' '
set --
exec {__cove_in}<&0 {__cove_out}>&1 {__cove_err}>&2 </dev/null

__cove_frame() { printf '%s%s %s %d %d\n%s' "$__cove_mark" "$2" "$__cove_run" 0 "${#3}" "$3" >&"$1"; }
__cove_execute() { eval "$__cove_code"; }
__cove_return() { return 2; }

# An interrupt ends the code, not the shell: a debugger's trap that says 2 makes the function at hand
# return, and so every function up to the one that runs the code. Setting it comes last, because from
# then on no command of a function runs.
trap '[ -z "$__cove_busy" ] || {
  __cove_interrupted=1
  shopt -s extdebug
  trap "[ \${#FUNCNAME[@]} = 0 ] || __cove_return" DEBUG
}' INT
while read -r __cove_verb __cove_run __cove_language __cove_length <&"$__cove_in"; do
  LC_ALL=C IFS= read -r -N "$__cove_length" __cove_code <&"$__cove_in"
  __cove_interrupted=
  __cove_frame "$__cove_out" begin
  __cove_frame "$__cove_err" begin
  __cove_busy=1
  __cove_execute
  __cove_status=$? __cove_busy=
  trap - DEBUG
  shopt -u extdebug
  [ -z "$__cove_interrupted" ] || {
    __cove_status=130
    __cove_frame "$__cove_out" error '{"name":"Interrupted","value":"the code was interrupted","traceback":""}'
  }
  __cove_frame "$__cove_err" end
  __cove_frame "$__cove_out" end "{\"exit_code\":$__cove_status}"
done
