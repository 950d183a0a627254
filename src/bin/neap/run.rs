//! `neap run`: one prompt, continued greedily.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use neap::engine::{Engine, EngineOptions, FinishReason, Request};
use neap::model::Tokenizer;
use serde::Serialize;
use serde_json::json;

use crate::args::RunArgs;
use crate::bundled;
use crate::report::{CommandError, note, print, print_json, write_file};
use crate::session;

/// One completion.
#[derive(Serialize)]
struct Completion {
    tokens: Vec<u32>,
    text: String,
    finish_reason: FinishReason,
}

/// What was generated, and when.
struct Generated {
    /// One or more, the likeliest beginning first.
    completions: Vec<Completion>,
    first_token: Duration,
    /// From the first token to the last.
    decode: Duration,
}

impl Generated {
    fn num_tokens(&self) -> usize {
        let completions = self.completions.iter();
        completions.map(|completion| completion.tokens.len()).sum()
    }

    /// Tokens a second after the first of each completion, 0 where there was only one.
    fn decode_tokens_per_second(&self) -> f64 {
        let later = self.num_tokens().saturating_sub(self.completions.len());
        match later {
            0 => 0.0,
            count => count as f64 / self.decode.as_secs_f64().max(1e-9),
        }
    }
}

/// Runs the command.
pub fn run(args: &RunArgs) -> Result<(), CommandError> {
    let model = bundled::model_or_bundled(args.model.as_deref())?;
    let prompt = prompt(args)?;
    let device = session::open(&args.device)?;
    let outcome = on_device(args, &model, &prompt, &device);
    session::ended(&device, outcome)
}

fn on_device(
    args: &RunArgs,
    model: &Path,
    prompt: &str,
    device: &neap::driver::Device,
) -> Result<(), CommandError> {
    let tokenizer = Tokenizer::from_dir(model).map_err(CommandError::refused)?;
    let prompt_tokens = tokenizer.encode(prompt).map_err(CommandError::refused)?;
    let mut options = EngineOptions {
        page_size: args.page_size,
        eager: args.eager,
        policy: args.policy,
        role: args.role,
        max_kv_tokens: args.max_kv_tokens.map(u64::from),
        prefix_cache: !args.no_prefix_cache,
        ..EngineOptions::default()
    };
    if let Some(bytes) = args.headroom {
        options.headroom_bytes = bytes;
    }
    let started = Instant::now();
    let mut engine = session::load(device, model, &options, !args.json)?;
    let startup = started.elapsed();
    let ledger = engine.ledger().clone();
    let carve = engine.carve().clone();
    if !args.json {
        note(&format!(
            "{}, {}\n\n{ledger}\n{carve}",
            device.name(),
            model.display()
        ));
        note(&format!(
            "prompt {prompt:?}, {} tokens\n",
            prompt_tokens.len()
        ));
    }
    if let Some(path) = &args.svg {
        let title = format!("{} on {}", model.display(), device.name());
        write_file(path, &engine.memory_map(title).to_svg())?;
    }
    let generated = generate(&mut engine, &tokenizer, &prompt_tokens, args)?;
    let startup_timings =
        serde_json::to_value(engine.startup_timings()).map_err(CommandError::refused)?;
    engine.close().map_err(CommandError::refused)?;
    if args.json {
        let first = &generated.completions[0];
        return print_json(&json!({
            "model": model,
            "device": session::device_json(device)?,
            "ledger": ledger,
            "carve": carve,
            "prompt_tokens": prompt_tokens,
            "tokens": first.tokens,
            "text": first.text,
            "finish_reason": first.finish_reason,
            "completions": generated.completions,
            "timings": {
                "clock": if device.driver().is_emulator() { "host wall clock of the emulator" } else { "host wall clock" },
                "startup_us": startup.as_micros() as u64,
                "startup": startup_timings,
                "first_token_us": generated.first_token.as_micros() as u64,
                "decode_us": generated.decode.as_micros() as u64,
                "decode_tokens_per_second": generated.decode_tokens_per_second(),
            },
        }));
    }
    note(&format!(
        "\n{} tokens, ended by {}; start-up {:.2} s, first token after {:.0} ms, then {:.1} tokens/s{}",
        generated.num_tokens(),
        generated.completions[0].finish_reason,
        startup.as_secs_f64(),
        generated.first_token.as_secs_f64() * 1e3,
        generated.decode_tokens_per_second(),
        if device.driver().is_emulator() {
            " (wall clock of the emulator on this CPU)"
        } else {
            ""
        },
    ));
    Ok(())
}

fn generate(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    prompt_tokens: &[u32],
    args: &RunArgs,
) -> Result<Generated, CommandError> {
    // Several completions come interleaved, so they are shown when they are whole.
    let streamed = args.completions == 1 && !args.json;
    let show = |piece: &str| if streamed { print(piece) } else { Ok(()) };
    let request = Request {
        prompt: prompt_tokens.to_vec(),
        max_new_tokens: args.max_new_tokens,
        stop_tokens: engine.stop_tokens().to_vec(),
    };
    let started = Instant::now();
    let ids = engine
        .submit_completions(request, args.completions)
        .map_err(CommandError::refused)?;
    let mut streams: Vec<_> = ids.iter().map(|_| tokenizer.stream()).collect();
    let mut completions: Vec<_> = ids
        .iter()
        .map(|_| Completion {
            tokens: Vec::new(),
            text: String::new(),
            finish_reason: FinishReason::Length,
        })
        .collect();
    let mut first_token = Duration::ZERO;
    while engine.has_work() {
        for event in engine.step().map_err(CommandError::refused)? {
            let Some(place) = ids.iter().position(|id| *id == event.request) else {
                continue;
            };
            if first_token.is_zero() {
                first_token = started.elapsed();
            }
            let (completion, stream) = (&mut completions[place], &mut streams[place]);
            completion.tokens.push(event.token);
            if let Some(reason) = event.finished {
                completion.finish_reason = reason;
            }
            let piece = stream.push(event.token).map_err(CommandError::refused)?;
            show(&piece)?;
            completion.text += &piece;
        }
    }
    let decode = started.elapsed().saturating_sub(first_token);
    for (place, (completion, stream)) in completions.iter_mut().zip(streams).enumerate() {
        let rest = stream.finish().map_err(CommandError::refused)?;
        show(&(rest.clone() + "\n"))?;
        completion.text += &rest;
        if !streamed && !args.json {
            print(&format!("[{}]{}\n", place + 1, completion.text))?;
        }
    }
    Ok(Generated {
        completions,
        first_token,
        decode,
    })
}

fn prompt(args: &RunArgs) -> Result<String, CommandError> {
    let Some(path) = &args.prompt_file else {
        return Ok(args
            .prompt
            .clone()
            .unwrap_or_else(|| bundled::PROMPT.to_owned()));
    };
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| ())
    } else {
        fs::read(path).map(|content| bytes = content)
    };
    let path = path.display();
    read.map_err(|error| {
        CommandError::Refused(format!("the prompt file {path} cannot be read ({error}); name a readable file, or use --prompt TEXT"))
    })?;
    String::from_utf8(bytes).map_err(|error| {
        CommandError::Refused(format!(
            "the prompt file {path} is not UTF-8 (byte {}); convert it to UTF-8",
            error.utf8_error().valid_up_to()
        ))
    })
}
