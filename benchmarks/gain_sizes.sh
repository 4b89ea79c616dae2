# The models of fp8_gain.sh and doctor_measure.sh, and the arguments of examples/train_gpt.py.
gain_sizes=(width4096 width2048 gpt2-batch32 gpt2-batch64 gpt2-batch128)
gain_arguments() { # SIZE
  case $1 in
    width4096) echo --dim 4096 --hidden 14336 --layers 2 --vocab 32000 --batch 8 --seq 1024 ;;
    width2048) echo --dim 2048 --hidden 8192 --layers 6 --vocab 32000 --batch 16 --seq 1024 ;;
    gpt2-batch*)
      echo --dim 768 --hidden 2048 --layers 12 --vocab 50304 --seq 1024 --batch "${1#gpt2-batch}" ;;
    *) echo "no such size: $1" >&2; return 1 ;;
  esac
}
gain_tokens() { # SIZE: tokens of a step
  local words
  read -ra words <<<"$(gain_arguments "$1")"
  local i batch seq
  for ((i = 0; i < ${#words[@]}; i += 2)); do
    [ "${words[i]}" = --batch ] && batch=${words[i + 1]}
    [ "${words[i]}" = --seq ] && seq=${words[i + 1]}
  done
  echo $((batch * seq))
}
